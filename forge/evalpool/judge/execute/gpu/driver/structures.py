"""Structures of the driver's calls. They are the same for CUDA and HIP."""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_uint, c_ulonglong, c_void_p


class Location(ctypes.Structure):
    """A device by its index."""

    _fields_ = [("kind", c_int), ("index", c_int)]


class MemoryProperties(ctypes.Structure):
    """Kind of physical memory that is created."""

    _fields_ = [
        ("kind", c_int),
        ("handle_kinds", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Access(ctypes.Structure):
    """Rights of a device to a mapped range."""

    _fields_ = [("location", Location), ("flags", c_int)]


class LaunchAttribute(ctypes.Structure):
    """One of a launch's attributes: its number, four bytes of padding, 64 bytes of value."""

    _fields_ = [("number", c_int), ("padding", c_int), ("value", c_uint * 16)]


class LaunchConfig(ctypes.Structure):
    """Geometry and stream of a launch."""

    _fields_ = [
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("num_attributes", c_uint),
    ]


class TensorMap(ctypes.Structure):
    """An encoded tensor map; lies at a multiple of `TENSOR_MAP_ALIGNMENT` (see `aligned_map`)."""

    _fields_ = [("words", c_ulonglong * 16)]
