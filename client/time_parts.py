"""Where a request's time went, end to end: what broker and stages have told, and what this process has timed itself."""

from __future__ import annotations

from dataclasses import dataclass, fields

from stagewire.wire.timing import RequestTiming


@dataclass(frozen=True, slots=True)
class TimeParts:
    """Seconds that together make up `total_s`. Each is timed by the clock of one process; `remainder_s` is the rest.

    Attributes:
        return_s: by this client: a message's way to the broker and back, from the call to the word that the request is
            admitted. It stands for the request's way there and for the last token's way back.
        admission_s: by the broker: queued there.
        handover_s: by this client: from the word that it is admitted to the word that a head has it, less
            `admission_s`. A head that is computing reads it late. Its word is still under way when it begins: where all
            parts would exceed the total, so much is taken off here.
        queue_s: by head and stages: waiting for its next step, and for a stage to be free. What may have lain unread at
            a busy stage counts here, as far as nothing else explains the time.
        paused_s: by the head: the caller did not take its tokens.
        restore_s, prefill_s: by the tail: steps that took a prefix from the caches, and that computed the prompt; by
            the head, in `restore_s`, waiting until stages had read files.
        compute_s: by each stage, head first: forward passes of the steps that brought a token; then, of the same steps,
            `plan_s`, making ready; `sample_s`, drawing; `codec_s`, messages to frames and back.
        hops_s: by the tail: what its round trips took beyond all that, so the links between stages.
        remainder_s: what is left of the total: above all the first step's way from stage to stage. Where the
            message's way back took longer than that of the last token, it is below zero.
    """

    return_s: float
    admission_s: float
    handover_s: float
    queue_s: float
    paused_s: float
    restore_s: float
    prefill_s: float
    compute_s: tuple[float, ...]
    plan_s: float
    sample_s: float
    codec_s: float
    hops_s: float
    remainder_s: float

    def rows(self) -> list[tuple[str, float]]:
        """Name and seconds of each part in order, one for each stage's `compute_s`."""
        found: list[tuple[str, float]] = []
        for field in fields(self):
            value = getattr(self, field.name)
            name = field.name.removesuffix("_s")
            if isinstance(value, tuple):
                found += [(f"{name} stage {index}", seconds) for index, seconds in enumerate(value)]
            else:
                found.append((name, value))
        return found


def time_parts(
    timing: RequestTiming, accepted_s: float | None, dispatched_s: float | None, total_s: float
) -> TimeParts:
    """The parts of `total_s`; what this client has not seen (a broker that restarted, say) is left to the remainder."""
    return_s = accepted_s or 0.0
    rest_s = total_s - return_s - _told_s(timing)
    most_s = 0.0 if dispatched_s is None else max(0.0, dispatched_s - return_s - timing.admission_s)
    handover_s = min(most_s, max(0.0, rest_s))
    rest_s -= handover_s
    unread_s = min(max(0.0, rest_s), timing.unread_s)
    return TimeParts(
        return_s=return_s,
        admission_s=timing.admission_s,
        handover_s=handover_s,
        queue_s=timing.queue_s + unread_s,
        paused_s=timing.paused_s,
        restore_s=timing.restore_s,
        prefill_s=timing.prefill_s,
        compute_s=timing.compute_s,
        plan_s=timing.plan_s,
        sample_s=timing.sample_s,
        codec_s=timing.codec_s,
        hops_s=timing.hops_s,
        remainder_s=rest_s - unread_s,
    )


def _told_s(timing: RequestTiming) -> float:
    """The sum of what the broker and the pipeline have told."""
    waited_s = timing.admission_s + timing.queue_s + timing.paused_s
    decode_s = sum(timing.compute_s) + timing.plan_s + timing.sample_s + timing.codec_s + timing.hops_s
    return waited_s + timing.restore_s + timing.prefill_s + decode_s
