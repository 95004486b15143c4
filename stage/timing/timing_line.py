"""The one line of the log that says where a request's time went; the tail writes it, where all of it is known."""

from __future__ import annotations

from stagewire.wire.epoch import Epoch
from stagewire.wire.note import Note
from stagewire.wire.request import Ending
from stagewire.wire.ring import SequenceStart
from stagewire.wire.timing import RequestTiming


def timing_line(start: SequenceStart, ending: Ending, epoch: Epoch) -> Note:
    """`key=value`, times in milliseconds; `compute_ms` has one for each stage, head first."""
    usage, reason = ending.usage, (ending.code or ending.finish_reason).value
    return Note(
        "request_timing",
        f"request={one_word(start.request_id)} client={one_word(start.client_id)} "
        f"session={one_word(start.session_id)} epoch={epoch} ending={reason} "
        f"prompt_tokens={usage.prompt_tokens} cached_tokens={usage.cached_tokens} "
        f"completion_tokens={usage.completion_tokens}{_parts(ending.timing) if ending.timing else ''}",
    )


def one_word(text: str) -> str:
    """A client's name must not be able to forge another line of the log, or another field of this one."""
    is_word = text and text.isprintable() and not set(text) & set(" ='\"")
    return text if is_word else repr(text)


def _parts(timing: RequestTiming) -> str:
    compute_ms = ",".join([f"{1000 * seconds:.2f}" for seconds in timing.compute_s])
    parts = {
        "admission_ms": timing.admission_s,
        "queue_ms": timing.queue_s,
        "paused_ms": timing.paused_s,
        "restore_ms": timing.restore_s,
        "prefill_ms": timing.prefill_s,
        "plan_ms": timing.plan_s,
        "sample_ms": timing.sample_s,
        "codec_ms": timing.codec_s,
        "hops_ms": timing.hops_s,
    }
    words = [f" {name}={1000 * seconds:.2f}" for name, seconds in parts.items()]
    return "".join(words) + f" compute_ms={compute_ms}"
