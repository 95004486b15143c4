"""Who is measured at which work: llama.cpp with three files, with one thread or two, alone or split over servers."""

from __future__ import annotations

from dataclasses import dataclass

from bench.works import Phase, Work


@dataclass(frozen=True, slots=True)
class Peer:
    """`kind` is the model file: `file` is the one that we serve, anything else is requantized from it."""

    name: str
    kind: str
    threads: int
    is_rpc: bool = False


FILE = "file"
KINDS = (FILE, "q4_0", "bf16")
LLAMA = "llama.cpp"
TOTAL_THREADS = 2


def name_of(kind: str) -> str:
    return LLAMA if kind == FILE else f"{LLAMA}-{kind}"


def peers_at(work: Work, with_rpc: bool) -> list[Peer]:
    """All that a work is compared with.

    A single sequence keeps one of our two threads busy at a time, so its row of plain name is llama.cpp with one
    thread; the one with two stands beside it.
    """
    is_single = work.phase is Phase.DECODE and work.num_sequences == 1
    threads = 1 if is_single else TOTAL_THREADS
    peers = [Peer(name_of(kind), kind, threads) for kind in KINDS]
    if is_single:
        both = f"-{TOTAL_THREADS}-threads"
        peers += [Peer(name_of(kind) + both, kind, TOTAL_THREADS) for kind in (FILE, "q4_0")]
    if with_rpc and work.name in ("prefill_512", "decode_1"):
        peers.append(Peer(f"{LLAMA}-rpc", FILE, 1, is_rpc=True))
    return peers


def peers_of_single_stage() -> list[Peer]:
    """A single stage with all threads against llama.cpp with all threads."""
    return [Peer(name_of(kind), kind, TOTAL_THREADS) for kind in KINDS]
