"""[transforms] and [predicates] in one mapping → the chain, as the settings read them."""

from collections.abc import Mapping

from cdc.settings.model import in_order
from cdc.transforms.chain import Chain, chain


def build(keys: Mapping[str, str], *, lossless: bool = True) -> Chain:
    """``predicates.p.type`` stands for ``p.type`` in [predicates], all else is of [transforms]."""
    start = "predicates."
    predicates = {k.removeprefix(start): v for k, v in keys.items() if k.startswith(start)}
    transforms = {key: value for key, value in keys.items() if not key.startswith(start)}
    return chain(in_order(transforms), in_order(predicates), lossless=lossless)
