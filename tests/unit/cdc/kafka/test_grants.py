"""Topics and operations → the fewest possible commands of kafka-acls."""

from cdc.kafka.grants import grants

COMMAND = (
    "kafka-acls --bootstrap-server b:9092 --add --allow-principal User:… --operation"
    " DescribeConfigs --operation Write --resource-pattern-type "
)


def test_rights_are_given_by_our_two_prefixes_and_to_each_other_topic_by_name() -> None:
    names = [
        "shop.public.a",
        "__millrace.shop.progress",
        "shop.public.b",
        "__millrace.shop.tables",
        "shopkeeper",
        "signals",
    ]
    assert grants("b:9092", "shop", names, {"WRITE", "DESCRIBE_CONFIGS"}).splitlines() == [
        "run",
        f"      {COMMAND}prefixed --topic __millrace.shop.",
        f"      {COMMAND}prefixed --topic shop.",
        f"      {COMMAND}literal --topic shopkeeper",
        f"      {COMMAND}literal --topic signals",
    ]
