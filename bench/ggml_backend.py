"""The few functions of ggml's backend registry that llama-cpp-python does not wrap: buffer types and RPC.

Only the processes of `bench.llama_worker` and `bench.llama_rpc_server` import this.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import llama_cpp

_CPU = 0
_ggml = ctypes.CDLL(str(Path(llama_cpp.llama_cpp._lib._name).parent / "libggml.so"))
_base = ctypes.CDLL(str(Path(llama_cpp.llama_cpp._lib._name).parent / "libggml-base.so"))


class NoRpcError(Exception):
    """The library was built without its RPC backend."""


def _function(library: ctypes.CDLL, name: str, *argument_types: type) -> ctypes._NamedFuncPointer:
    function: ctypes._NamedFuncPointer = getattr(library, name)
    function.restype, function.argtypes = ctypes.c_void_p, argument_types
    return function


_device_by_type = _function(_ggml, "ggml_backend_dev_by_type", ctypes.c_int)
_registry_by_name = _function(_ggml, "ggml_backend_reg_by_name", ctypes.c_char_p)
_registry_of = _function(_base, "ggml_backend_dev_backend_reg", ctypes.c_void_p)
_address_in = _function(_base, "ggml_backend_reg_get_proc_address", ctypes.c_void_p, ctypes.c_char_p)
_device_of_registry = _function(_base, "ggml_backend_reg_dev_get", ctypes.c_void_p, ctypes.c_size_t)
_buffer_type_name = _function(_base, "ggml_backend_buft_name", ctypes.c_void_p)
_buffer_type_name.restype = ctypes.c_char_p


def extra_buffer_type(name: str) -> int:
    """The CPU's buffer type of that name.

    Raises:
        LookupError: this build has none.
    """
    device = _device_by_type(_CPU)
    address = _address_in(_registry_of(device), b"ggml_backend_dev_get_extra_bufts")
    listing = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)(device)
    index = 0
    while pointer := listing[index]:
        if _buffer_type_name(pointer) == name.encode():
            return int(pointer)
        index += 1
    raise LookupError(f"this build of llama.cpp has no buffer type {name}")


def connect_servers(endpoints: Sequence[str]) -> list[int]:
    """Connects to RPC servers (`HOST:PORT`); the device of each.

    Raises:
        NoRpcError: the library cannot do that.
    """
    add_server = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(_rpc_address(b"ggml_backend_rpc_add_server"))
    registries = [add_server(endpoint.encode()) for endpoint in endpoints]
    return [int(_device_of_registry(registry, 0)) for registry in registries]


def serve(endpoint: str, threads: int) -> None:
    """Serves the CPU to whoever connects, and returns only if it cannot.

    Raises:
        NoRpcError: the library cannot do that.
    """
    kind = ctypes.CFUNCTYPE(
        None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)
    )
    devices = (ctypes.c_void_p * 1)(_device_by_type(_CPU))
    kind(_rpc_address(b"ggml_backend_rpc_start_server"))(endpoint.encode(), None, threads, 1, devices)


def _rpc_address(name: bytes) -> int:
    registry = _registry_by_name(b"RPC")
    if registry is None:
        raise NoRpcError("llama.cpp was built without its RPC backend (GGML_RPC=ON)")
    return int(_address_in(registry, name))
