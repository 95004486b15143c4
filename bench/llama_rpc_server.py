"""One RPC server of llama.cpp on loopback: `python -m bench.llama_rpc_server PORT THREADS`; it runs until killed."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from bench.ggml_backend import serve

    serve(f"127.0.0.1:{int(sys.argv[1])}", int(sys.argv[2]))
    sys.exit("llama.cpp's RPC server ended by itself")
