"""System calls that a reader of documents never needs, refused by the kernel (seccomp). For the worker process only, on Linux.

A list of what is refused, not of what is allowed: PDFium, Pillow and Python need other calls with each version and each C library,
and a list that is a little too short kills a worker that did nothing wrong. What is refused fails with EPERM, as if a permission
were missing. So code that took a worker over has no network, no children, no hold on other processes and no file that it could
change; it can still read what the user may read, and has nowhere to send it but into its own answer.
"""

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterator

__all__ = ["filter_instructions", "refuse_system_calls"]

# By name: the numbers on x86_64 and on aarch64 (which never had the older ones), from the kernel's unistd_64.h and unistd.h
REFUSED: dict[str, tuple[int | None, int | None]] = {
    # no network
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    # nor another way to talk to processes that know of it
    "msgget": (68, 186),
    "semget": (64, 190),
    "shmget": (29, 194),
    "mq_open": (240, 180),
    # no processes, and no threads: libraries that would start some are told not to
    "fork": (57, None),
    "vfork": (58, None),
    "clone": (56, 220),
    "clone3": (435, 435),
    "execve": (59, 221),
    "execveat": (322, 281),
    "unshare": (272, 97),
    "setns": (308, 268),
    # nothing done to other processes
    "kill": (62, 129),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    # nothing changed in the file system
    "creat": (85, None),
    "openat2": (437, 437),
    "open_by_handle_at": (304, 265),
    "truncate": (76, 45),
    "ftruncate": (77, 46),
    "fallocate": (285, 47),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "link": (86, None),
    "linkat": (265, 37),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "rmdir": (84, None),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "utime": (132, None),
    "utimes": (235, None),
    "utimensat": (280, 88),
    "futimesat": (261, None),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    # parts of the kernel that have had faults, or would go around this filter
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
}
OPEN, OPENAT = (2, None), (257, 56)
TKILL, TGKILL, PRLIMIT = (200, 130), (234, 131), (302, 261)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # the column of the table, and AUDIT_ARCH_…
X32_CALLS = 0x40000000  # from here on x86_64 has its calls a second time

SET_SECCOMP, FILTER_MODE = 22, 2  # linux/prctl.h, linux/seccomp.h
LOAD, JUMP_IF_EQUAL, JUMP_IF_LEAST, JUMP_IF_BITS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # linux/bpf_common.h
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | 1  # SECCOMP_RET_ERRNO with EPERM
NUMBER_AT, MACHINE_AT, ARGUMENTS_AT = 0, 4, 16  # struct seccomp_data; both machines have the low half of an argument first

Instruction = tuple[int, int, int, int]  # struct sock_filter


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def refuse_system_calls() -> bool:
    """Have the kernel refuse the calls from here on, in this process and for good. Call it after `PR_SET_NO_NEW_PRIVS`.

    Returns whether it does: not on other systems than Linux, on other machines than x86_64 and aarch64, and where the kernel has no
    seccomp filters. Raises nothing.
    """
    machine = MACHINES.get(platform.machine())
    if sys.platform != "linux" or machine is None or sys.maxsize < 1 << 32:
        return False
    program = b"".join(struct.pack("=HBBI", *instruction) for instruction in filter_instructions(*machine, os.getpid()))
    libc = ctypes.CDLL(None, use_errno=True)
    unused = ctypes.c_ulong(0)
    given = ctypes.byref(_Program(len(program) // 8, program))
    return bool(libc.prctl(SET_SECCOMP, ctypes.c_ulong(FILTER_MODE), given, unused, unused) == 0)


def filter_instructions(column: int, machine: int, own_process: int) -> Iterator[Instruction]:
    """The filter, for a column of the table. Each rule is a comparison that skips the rest of the rule where it does not apply."""
    refuse, allow = (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)
    yield LOAD, 0, 0, MACHINE_AT
    yield JUMP_IF_EQUAL, 1, 0, machine
    yield refuse  # calls of another machine, such as 32-bit ones, have other numbers
    yield LOAD, 0, 0, NUMBER_AT
    yield JUMP_IF_LEAST, 0, 1, X32_CALLS
    yield refuse
    for numbers in REFUSED.values():
        if (number := numbers[column]) is not None:
            yield JUMP_IF_EQUAL, 0, 1, number
            yield refuse
    for numbers, flags in ((OPEN, 1), (OPENAT, 2)):
        if (number := numbers[column]) is not None:
            yield JUMP_IF_EQUAL, 0, 4, number
            yield LOAD, 0, 0, ARGUMENTS_AT + 8 * flags
            yield JUMP_IF_BITS, 0, 1, WRITING
            yield refuse
            yield allow
    # musl makes abort() of the first (a lone thread has its process's number), glibc of the second; setrlimit() is the third
    for numbers, only in ((TKILL, own_process), (TGKILL, own_process), (PRLIMIT, 0)):
        number = numbers[column]
        assert number is not None  # both machines have them
        yield JUMP_IF_EQUAL, 0, 4, number
        yield LOAD, 0, 0, ARGUMENTS_AT
        yield JUMP_IF_EQUAL, 1, 0, only
        yield refuse
        yield allow
    yield allow
