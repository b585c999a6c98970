"""cdc/compiled/*.pyx → the extensions; without a compiler there is no Millrace."""

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
                f"millrace: {ext.name.replace('.', '/')}.pyx can't be compiled: {error}\n"
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
    module = run_path(str(FOLDER / "extension.py"))
    made = [
        Extension(
            f"cdc.compiled.{name}",
            [str(FOLDER / f"{name}.pyx")],
            define_macros=[("MILLRACE_SOURCES", f'"{module["digest"](name)}"')],
            extra_compile_args=["-O3"],
        )
        for name in module["INCLUDES"]
    ]
    found: list[Extension] = cythonize(made, build_dir="build")
    return found


setup(ext_modules=extensions(), cmdclass={"build_ext": Build})
