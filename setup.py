"""Builds the native kernels, one module for each instruction set; everything else is in pyproject.toml.

They are optional: where there is no C++ compiler, or it does not know an instruction set, the package installs without.
STAGEWIRE_SANITIZE=portable,avx2 builds those alone, for `make sanitize`: errors of memory and undefined behaviour end
the process, and a build that fails is an error. Builds in place (so editable installs) and sanitized ones also have
the single operators of tests/support/native_operators.h, which kernels that are shipped do without.
"""

import os
import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

_TESTS = Path("tests/support")
_HEADERS = sorted(path.as_posix() for path in Path("stage/native/src").glob("*.h"))
# -ffp-contract=off: a product and a sum are fused where the source says so, and nowhere else; the bits depend on it.
_FLAGS = ["-std=c++17", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-pthread"]
# gcc calls operands of its own intrinsics uninitialized.
_FLAGS += ["-Wno-maybe-uninitialized", "-Wno-uninitialized"]
_AVX2 = ["-mavx2", "-mfma", "-mf16c"]
_AVX512 = [*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"]
_VARIANTS = {"portable": ["-O2"]}
if platform.machine().lower() in {"x86_64", "amd64"}:
    _VARIANTS |= {"avx2": ["-O3", *_AVX2], "avx512": ["-O3", *_AVX512]}
    _VARIANTS |= {"amx": ["-O3", *_AVX512, "-mamx-tile", "-mamx-int8"]}

_SANITIZED = os.environ.get("STAGEWIRE_SANITIZE")
_SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"] if _SANITIZED else []
if _SANITIZED:
    # The last -O counts: the checks are as good, and compiling takes a third of the time. -fwrapv, which Python's own
    # flags may bring, would call off the check of signed overflow.
    _VARIANTS = {name: [*_VARIANTS[name], "-O1", "-g1", "-fno-wrapv", *_SANITIZERS] for name in _SANITIZED.split(",")}


class _BuildKernels(build_ext):
    def finalize_options(self) -> None:
        super().finalize_options()
        if (self.inplace or _SANITIZED) and (_TESTS / "native_operators.h").exists():
            for extension in self.extensions:
                extension.define_macros.append(("STAGEWIRE_TEST_OPERATORS", None))
                extension.include_dirs.append(_TESTS.as_posix())
                extension.depends.append((_TESTS / "native_operators.h").as_posix())
        if self.inplace:
            self.build_lib = "build/inplace"  # or a wheel would take these modules for its own


setup(
    cmdclass={"build_ext": _BuildKernels},
    ext_modules=[
        Extension(
            f"stagewire.stage.native._{name}",
            sources=[f"stage/native/src/{name}.cpp"],
            depends=_HEADERS,
            language="c++",
            extra_compile_args=[*_FLAGS, *flags],
            extra_link_args=["-pthread", *_SANITIZERS],
            define_macros=[("Py_LIMITED_API", "0x030a0000")],
            py_limited_api=True,
            optional=not _SANITIZED,
        )
        for name, flags in _VARIANTS.items()
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
