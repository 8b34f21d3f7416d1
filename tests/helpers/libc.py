"""What a test needs of the C library."""

from __future__ import annotations

import platform

import pytest

needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="freed memory is kept by glibc's allocator")
