"""Have Py4J remember what a name of the JVM is.

It asks anew for each function that is called, and Java then looks for ``functions``, ``org`` and
``org.apache`` in hundreds of jars: a tenth of all that small merges do.
"""

from collections.abc import Callable
from functools import cache
from typing import Any


@cache  # once in a process
def ask_names_once() -> None:
    """Remember classes, their methods and packages, for as long as their gateway is there."""
    from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView

    def remembering(ask: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
        def found(self: Any, name: str) -> Any:
            value = ask(self, name)
            if isinstance(value, (JavaClass, JavaMember, JavaPackage)):
                self.__dict__[name] = value
            return value

        return found

    for kind in (JVMView, JavaPackage, JavaClass):
        kind.__getattr__ = remembering(kind.__getattr__)
