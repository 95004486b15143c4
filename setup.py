"""Builds the native kernels, one module for each instruction set; everything else is in pyproject.toml.

They are optional: where there is no C++ compiler, or it does not know an instruction set, the package installs without.
They compile side by side. An editable install keeps them in build/, and compiles only what is older than its sources.
STAGEWIRE_SANITIZE=portable,avx2 builds those alone, for `make sanitize`: errors of memory and undefined behaviour end
the process, and a build that fails is an error; so it is with STAGEWIRE_KERNELS=all, for `make wheel`. Builds in place
(so editable installs) and sanitized ones also have the single operators of tests/support/native_operators.h, which
kernels that are shipped do without.
"""

import os
import platform
import sysconfig
import threading
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

_TESTS = Path("tests/support")
_DEPENDS = ["setup.py", *sorted(path.as_posix() for path in Path("stage/native/src").glob("*.h"))]
# -ffp-contract=off: a product and a sum are fused where the source says so, and nowhere else; the bits depend on it.
_FLAGS = ["-std=c++17", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-pthread"]
# Python's own flags ask for debugging information, a third of the compile time and two thirds of the files.
_FLAGS += ["-g0"]
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
        self.parallel = self.parallel or os.cpu_count()
        is_in_place = self.inplace or self.editable_mode
        if is_in_place:  # not where a wheel would take these modules for its own, nor a folder that is new each time
            self.build_lib = f"build/editable-{sysconfig.get_platform()}"
        if (is_in_place or _SANITIZED) and (_TESTS / "native_operators.h").exists():
            for extension in self.extensions:
                extension.define_macros.append(("STAGEWIRE_TEST_OPERATORS", None))
                extension.include_dirs.append(_TESTS.as_posix())
                extension.depends.append((_TESTS / "native_operators.h").as_posix())

    def run(self) -> None:
        done = threading.Event()
        threading.Thread(target=_say_so, args=[done], daemon=True).start()
        super().run()
        done.set()


def _say_so(done: threading.Event) -> None:
    """Compilers are silent; with each line that it reads, pip moves what it shows of its progress."""
    while not done.wait(2):
        print("compiling the native kernels", flush=True)


setup(
    cmdclass={"build_ext": _BuildKernels},
    ext_modules=[
        Extension(
            f"stagewire.stage.native._{name}",
            sources=[f"stage/native/src/{name}.cpp"],
            depends=_DEPENDS,
            language="c++",
            extra_compile_args=[*_FLAGS, *flags],
            extra_link_args=["-pthread", *_SANITIZERS],
            define_macros=[("Py_LIMITED_API", "0x030a0000")],
            py_limited_api=True,
            optional=not _SANITIZED and os.environ.get("STAGEWIRE_KERNELS") != "all",
        )
        for name, flags in _VARIANTS.items()
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
