"""cdc/compiled/fast.pyx → the extension, where there is a compiler; else pure Python."""

import warnings
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class OptionalBuild(build_ext):
    """Builds what can be built: a missing compiler or header is a warning, not a failure."""

    def build_extension(self, ext: Extension) -> None:
        """Compile; what couldn't be is left out of what is installed."""
        try:
            super().build_extension(ext)
        except Exception as error:  # noqa: BLE001 (a compiler that isn't there fails in many ways)
            warnings.warn(f"{ext.name} was not compiled: {error}", stacklevel=1)
            self.extensions.remove(ext)


def extensions() -> list[Extension]:
    """Translate to C, where Cython is there."""
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    source = str(Path("cdc", "compiled", "fast.pyx"))
    fast = Extension("cdc.compiled.fast", [source], extra_compile_args=["-O3"])
    found: list[Extension] = cythonize([fast], build_dir="build")
    return found


setup(ext_modules=extensions(), cmdclass={"build_ext": OptionalBuild})
