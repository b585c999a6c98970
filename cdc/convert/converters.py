"""Settings → the converters of keys, values and headers: SourceRecord → Record.

In the section ``format`` the keys ``key`` and ``value`` name a format (``json``, ``avro``). A
format's option has one of them as its prefix (``value.schemas.enable``), or no prefix for both.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from cdc.convert.json_text import JsonConverter, JsonOptions
from cdc.errors import ConfigError
from cdc.records.connect import Header, Schema, SourceRecord
from cdc.records.record import Record
from cdc.settings.options import Options

KeyOrValue = Literal["key", "value"]
Convert = Callable[[str, Schema | None, Any], bytes | None]
Check = Callable[[], None]

ADJUSTMENT_OPTIONS: Final = ("schema.name.adjustment.mode", "field.name.adjustment.mode")
_FORMATS: Final = ("json", "avro")
_SIDES: Final = ("key", "value")
_URL: Final = "schema.registry.url"


class Converters:
    """Converts source records to Kafka records. Headers are always JSON with their schema.

    ``leaves_out``: values may lack members. Avro has only null for a value that PostgreSQL didn't
    send, so the envelope needs a placeholder. ``shows_columns``: records contain columns' defaults,
    and whether columns may be null.
    """

    def __init__(self, key: Convert, value: Convert, checks: list[Check]) -> None:
        self._key = key
        self._value = value
        self._checks = checks
        self.leaves_out = isinstance(value, JsonConverter)
        self.shows_columns = any(
            not isinstance(side, JsonConverter) or side.shows_columns for side in (key, value)
        )
        self._header = JsonConverter(JsonOptions(schemas=True))

    @property
    def json(self) -> tuple[JsonConverter, JsonConverter] | None:
        """The converters of keys and values if both write JSON."""
        key, value = self._key, self._value
        if isinstance(key, JsonConverter) and isinstance(value, JsonConverter):
            return key, value
        return None

    def __call__(self, record: SourceRecord) -> Record:
        """Convert one record."""
        return Record(
            record.topic,
            self._key(record.topic, record.key_schema, record.key),
            self._value(record.topic, record.value_schema, record.value),
            self.headers(record.headers),
            record.partition,
            record.timestamp_ms or 0,
        )

    def headers(self, headers: tuple[Header, ...]) -> list[tuple[str, bytes]]:
        """Convert only headers."""
        return [
            (header.name, self._header.payload(header.schema, header.value)) for header in headers
        ]

    def check(self) -> None:
        """Ask each registry whether it answers and accepts our credentials."""
        for check in self._checks:
            check()


def converters(section: Mapping[str, str], *, preset: bool = False) -> Converters:
    """Return the converters that a section asks for. ``preset`` uses Kafka Connect's defaults.

    Raise ConfigError for unknown options. Connects to nothing.
    """
    checks: list[Check] = []
    shared = {name: value for name, value in section.items() if not name.startswith(_SIDES)}
    if shared.pop("header", "json") != "json":
        raise ConfigError("headers are JSON with their schemas", where="[format] header")
    key = Options("[format] key", {**shared, **_own(section, "key")})
    value = Options("[format] value", {**shared, **_own(section, "value")})
    made = Converters(
        _convert(key, "key", preset, checks), _convert(value, "value", preset, checks), checks
    )
    # An option of both sides may apply to only one of their formats.
    key.refuse_unread(shared.keys() - value.unread)
    value.refuse_unread(shared.keys() - key.unread)
    return made


def _own(section: Mapping[str, str], side: KeyOrValue) -> dict[str, str]:
    """Return a side's own options. "" is the format itself."""
    own = {"": section[side]} if side in section else {}
    for name, value in section.items():
        if name.startswith(f"{side}."):
            own[name.removeprefix(f"{side}.")] = value
    return own


def _convert(options: Options, side: KeyOrValue, preset: bool, checks: list[Check]) -> Convert:
    if options.choice("", _FORMATS, "json") == "avro":
        return _avro(options, side, checks)
    return _json(options, preset)


def _json(options: Options, preset: bool) -> Convert:
    for name in ADJUSTMENT_OPTIONS:
        options.adjustment(name)  # the envelope's names are adjusted there
    decimal_format = options.choice("decimal.format", ("BASE64", "NUMERIC"), "BASE64")
    return JsonConverter(
        JsonOptions(
            schemas=options.flag("schemas.enable", preset),
            decimal_numbers=decimal_format == "NUMERIC",
            replace_null_with_default=options.flag("replace.null.with.default", preset),
            java_floats=preset,
        )
    )


def _avro(options: Options, side: KeyOrValue, checks: list[Check]) -> Convert:
    try:
        from cdc.convert.avro import SUBJECT_DEFAULT, SUBJECTS, AvroConverter
        from cdc.convert.avro_schema import AvroOptions
        from cdc.convert.registry import Registry
    except ImportError as error:
        raise _not_installed(error, f"[format] {side}") from None
    long_name = f"{side}.subject.name.strategy"  # Confluent's name; ours has the side as prefix
    short = options.text("subject.name.strategy", SUBJECT_DEFAULT)
    strategy = options.text(long_name, short)
    subject = SUBJECTS.get(strategy.rpartition(".")[2])
    if subject is None:
        raise options.wrong("subject.name.strategy", f"must be one of {', '.join(SUBJECTS)}")
    registry = Registry(
        options.under(("schema.registry.", "basic.auth.")),
        auto_register=options.flag("auto.register.schemas", True),
    )
    checks.append(registry.check)
    return AvroConverter(
        side,
        registry,
        subject,
        AvroOptions(
            connect_meta_data=options.flag("connect.meta.data", True),
            ignore_default_for_nullables=options.flag("ignore.default.for.nullables", False),
            unicode_schema_names=_is_unicode(options, "schema.name.adjustment.mode"),
            unicode_field_names=_is_unicode(options, "field.name.adjustment.mode"),
        ),
    )


def _is_unicode(options: Options, name: str) -> bool:
    """Whether names allow Unicode. Avro needs an adjustment, so ``none`` is ``avro`` here."""
    return options.adjustment(name) == "avro_unicode"


def schema_reader(options: Mapping[str, str]) -> Callable[[int], str] | None:
    """Return a function from an id to an Avro schema's text. None: no registry is configured.

    The registry gets no request before the first record in Avro. Keys and values must have the same
    registry, as an id doesn't name its own.
    """
    chosen = {
        name.removeprefix(side): text
        for side in ("", "key.", "value.")
        for name, text in options.items()
        if name.startswith(side)
    }
    if _URL not in chosen:
        return None
    try:
        from cdc.convert.registry import Registry
    except ImportError as error:
        raise _not_installed(error, "[format]") from None
    return Registry(chosen).text_of


def _not_installed(error: ImportError, where: str) -> ConfigError:
    return ConfigError(
        f"Avro needs a package that isn't installed: {error.name}",
        where=where,
        remedy="pip install 'millrace[avro]'",
    )
