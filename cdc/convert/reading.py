"""[format] → how to ask the schema registry for what others have written."""

from collections.abc import Callable, Mapping

from cdc.errors import ConfigError

_URL = "schema.registry.url"


def schema_reader(options: Mapping[str, str]) -> Callable[[int], str] | None:
    """Id → an Avro schema's text; None where no registry is configured.

    The registry isn't asked before the first record in Avro comes up. Keys and values are taken to
    have the same one: an id says nothing of where it is from.
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
        raise ConfigError(
            f"Avro needs packages that aren't installed: {error.name}",
            where="[format]",
            remedy="pip install 'millrace[avro]'",
        ) from None
    return Registry(chosen).text_of
