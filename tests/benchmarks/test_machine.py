"""Processors are told apart where a virtual machine gives them one bland name, and named without a host's name."""

from __future__ import annotations

import pytest

from bench.machine import processor_of
from bench.record import Machine, read_machines

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


KEPT = [machine for machine in read_machines() if machine.slug in CASES]


@pytest.mark.parametrize("machine", KEPT, ids=lambda machine: machine.slug)
def test_what_was_measured_lies_where_its_processor_is_looked_for(machine: Machine) -> None:
    """Else a new row would not join the others, or replace them all."""
    vendor, family, name, flags = CASES[machine.slug]
    text = f"vendor_id : {vendor}\ncpu family : {family}\nmodel name : {name}\nflags : {flags}\n"
    processor = processor_of(text, "x86_64")
    assert processor.slug == machine.slug
    assert machine.results.machine.startswith(f"{processor.name}, ")


def test_a_processor_without_a_name_is_its_architecture() -> None:
    assert processor_of("processor : 0\nFeatures : fp asimd\n", "aarch64").slug == "aarch64"
    assert processor_of("", "").slug == "unknown"
