"""The upper bound of everything that a peer may send; a message beyond one is a protocol error."""

from __future__ import annotations

MAX_FRAMES = 64
MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_PAYLOAD_BYTES = 512 * 1024 * 1024
MAX_STRING_BYTES = 4096
MAX_BYTES = 4096
MAX_ITEMS = 65_536
MAX_TENSOR_DIMENSIONS = 4
MAX_PROMPT_TOKENS = 1_048_576
MAX_STOP_TOKENS = 1024
MAX_TOKENS = 2**31 - 1
MAX_NAME_CHARS = 256
MAX_DETAIL_CHARS = 2000
MAX_CARD_BYTES = 16 * 1024 * 1024
