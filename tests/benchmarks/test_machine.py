"""Processors are told apart where a virtual machine gives them one bland name, and named without a host's name."""

from __future__ import annotations

import pytest

from bench.machine import processor_of

CASES = {
    "amd-epyc-zen-4": ("AuthenticAMD", "25", "AMD EPYC", "avx2 avx512f avx512_vnni"),
    "amd-epyc-zen-3": ("AuthenticAMD", "25", "AMD EPYC", "avx2"),
    "amd-epyc-9r14-zen-4": ("AuthenticAMD", "25", "AMD EPYC 9R14 96-Core Processor", "avx2 avx512f"),
    "amd-epyc-zen-5": ("AuthenticAMD", "26", "AMD EPYC", "avx512f"),
    "amd-epyc": ("AuthenticAMD", "99", "AMD EPYC", "avx2 avx512f"),
    "intel-xeon-amx": ("GenuineIntel", "6", "Intel(R) Xeon(R) Processor", "avx2 avx512f avx512_vnni amx_int8"),
    "intel-xeon-avx-512": ("GenuineIntel", "6", "Intel(R) Xeon(R) CPU @ 2.00GHz", "avx2 avx512f"),
    "intel-core-tm2": ("GenuineIntel", "6", "Intel Core TM2", "sse"),
}


@pytest.mark.parametrize("slug", CASES)
def test_a_processor_is_told_by_family_and_flags(slug: str) -> None:
    vendor, family, name, flags = CASES[slug]
    text = f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel name\t: {name}\nflags\t\t: {flags}\n"
    assert processor_of(text, "x86_64").slug == slug


def test_the_description_keeps_the_name_and_says_the_generation() -> None:
    text = "vendor_id : AuthenticAMD\ncpu family : 25\nmodel name : AMD EPYC\nflags : avx2 avx512f\n"
    assert processor_of(text, "x86_64").description == "AMD EPYC (Zen 4)"


def test_a_processor_without_a_name_is_its_architecture() -> None:
    assert processor_of("processor : 0\nFeatures : fp asimd\n", "aarch64").slug == "aarch64"
    assert processor_of("", "").slug == "unknown"
