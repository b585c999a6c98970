"""cdc/compiled/fast.pyx → the extension; without a compiler there is no Millrace."""

from pathlib import Path
from runpy import run_path
from typing import Final

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, ExecError, PlatformError

FOLDER: Final = Path("cdc", "compiled")


class Build(build_ext):
    """Says what is missing where the extension can't be compiled."""

    def build_extension(self, ext: Extension) -> None:
        """Compile, or end the installation."""
        try:
            super().build_extension(ext)
        except (CCompilerError, ExecError, PlatformError) as error:
            raise SystemExit(
                f"millrace: {FOLDER / 'fast.pyx'} can't be compiled: {error}\n"
                "  → install a C compiler and Python's headers (Debian: build-essential and"
                " python3-dev), then install Millrace again"
            ) from None


def extensions() -> list[Extension]:
    """Translate to C."""
    try:
        from Cython.Build import cythonize
    except ImportError:
        raise SystemExit(
            "millrace: the installation needs Cython\n"
            "  → pip install 'Cython>=3.2', or install without --no-build-isolation"
        ) from None
    digest = run_path(str(FOLDER / "extension.py"))["digest"]()
    fast = Extension(
        "cdc.compiled.fast",
        [str(FOLDER / "fast.pyx")],
        define_macros=[("MILLRACE_SOURCES", f'"{digest}"')],
        extra_compile_args=["-O3"],
    )
    found: list[Extension] = cythonize([fast], build_dir="build")
    return found


setup(ext_modules=extensions(), cmdclass={"build_ext": Build})
