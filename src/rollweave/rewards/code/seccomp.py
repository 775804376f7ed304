"""The filter of system calls: what a program that only computes never asks the kernel for.

Namespaces already take away what such calls could reach. The filter takes away the calls themselves, where most flaws
of kernels have been. libseccomp translates the list; where that library is missing, sandboxes run without a filter.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

LIBRARY = "libseccomp.so.2"
ALLOW = 0x7FFF0000
REFUSE = 0x00050000
"""With the error number in its lower half."""
EQUAL, GREATER, MASKED_EQUAL = 4, 6, 7

FORBIDDEN = frozenset(
    """
acct add_key adjtimex bpf chroot clock_adjtime clock_settime create_module delete_module fanotify_init finit_module
fsconfig fsmount fsopen fspick get_mempolicy init_module io_uring_enter io_uring_register io_uring_setup ioperm iopl
kcmp kexec_file_load kexec_load keyctl lookup_dcookie mbind memfd_create memfd_secret migrate_pages mount
mount_setattr move_mount move_pages msgget name_to_handle_at nfsservctl open_by_handle_at open_tree perf_event_open
personality pidfd_getfd pivot_root process_madvise process_vm_readv process_vm_writev ptrace quotactl quotactl_fd
reboot request_key semget set_mempolicy setdomainname sethostname setns settimeofday shmget swapoff swapon syslog
umount umount2 unshare userfaultfd vhangup vmsplice
""".split()  # noqa: SIM905 (names, to be read as text)
)
"""memfd_create and the System V calls make memory that no limit of a process counts."""

NAMESPACE_FLAGS = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
"""Of clone: mount, cgroup, uts, ipc, user, pid, network."""

LAST_FAMILY = 16
FAMILIES = (1, 2, 10, 16)
"""Of sockets: unix, IPv4, IPv6, netlink; those after the last one include some that ignore the network namespace."""

TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX, which type into a terminal."""


class _Argument(ctypes.Structure):
    _fields_ = (
        ("number", ctypes.c_uint),
        ("comparison", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


class _Rule(NamedTuple):
    call: str
    error: int
    argument: tuple[int, int, int, int] | None = None


def _rules() -> Iterator[_Rule]:
    yield from (_Rule(name, errno.EPERM) for name in sorted(FORBIDDEN))
    yield _Rule("clone3", errno.ENOSYS)  # its flags lie in memory, where a filter cannot look; libc then uses clone
    yield from (_Rule("clone", errno.EPERM, (0, MASKED_EQUAL, flag, flag)) for flag in NAMESPACE_FLAGS)
    yield _Rule("socket", errno.EAFNOSUPPORT, (0, GREATER, LAST_FAMILY, 0))
    refused = (family for family in range(LAST_FAMILY) if family not in FAMILIES)
    yield from (_Rule("socket", errno.EAFNOSUPPORT, (0, EQUAL, family, 0)) for family in refused)
    yield from (_Rule("ioctl", errno.EPERM, (1, MASKED_EQUAL, 0xFFFFFFFF, code)) for code in TERMINAL_INPUT)


@cache
def filter_program() -> bytes | None:
    """The filter as bubblewrap takes it, for this processor; None without the library."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = (ctypes.c_uint32,)
    library.seccomp_rule_add_array.argtypes = (
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.POINTER(_Argument),
    )
    library.seccomp_export_bpf.argtypes = (ctypes.c_void_p, ctypes.c_int)
    library.seccomp_release.argtypes = (ctypes.c_void_p,)
    made = library.seccomp_init(ALLOW)
    try:
        for rule in _rules():
            _add(library, made, rule)
        return _export(library, made)
    finally:
        library.seccomp_release(made)


def _add(library: ctypes.CDLL, made: int, rule: _Rule) -> None:
    number = library.seccomp_syscall_resolve_name(rule.call.encode())
    if number < 0:  # a call that this processor, or this version of the library, does not know
        return
    argument = None if rule.argument is None else _Argument(*rule.argument)
    pointer = None if argument is None else ctypes.pointer(argument)
    failed = library.seccomp_rule_add_array(made, REFUSE | rule.error, number, int(argument is not None), pointer)
    if failed:
        raise OSError(-failed, f"libseccomp refuses the rule for {rule.call}")


def _export(library: ctypes.CDLL, made: int) -> bytes:
    with os.fdopen(os.memfd_create("seccomp"), "w+b") as file:
        if failed := library.seccomp_export_bpf(made, file.fileno()):
            raise OSError(-failed, "libseccomp cannot write its filter")
        file.seek(0)
        return file.read()
