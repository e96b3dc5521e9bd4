//! Proves that code makes no system call: the kernel ends the process at the first one.

use std::process::Command;

/// From now on this thread's first system call but write(2) and exit_group(2) ends the process
/// (SIGSYS).
pub(crate) fn forbid_system_calls() {
    let jump = |number: libc::c_long, to_allow| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: to_allow,
        jf: 0,
        k: u32::try_from(number).expect("system calls have small numbers"),
    };
    let answer = |k| libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let mut filter = [
        libc::sock_filter {
            // The first word of the filter's data is the call's number.
            code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16,
            jt: 0,
            jf: 0,
            k: 0,
        },
        jump(libc::SYS_write, 2),
        jump(libc::SYS_exit_group, 1),
        answer(libc::SECCOMP_RET_KILL_PROCESS),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: plain numbers; the kernel copies the filter, which lives until then, and no memory of
    // ours is changed.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                0,
                std::ptr::from_ref(&program),
            ) == 0
    };
    assert!(installed, "the kernel takes no filter");
}

/// Ends a process that may make no other system call.
pub(crate) fn exit_well() -> ! {
    // SAFETY: it ends the process and touches no memory.
    unsafe { libc::_exit(0) }
}

/// Runs a process that forbids itself system calls. Whether it came to its end; if not, that it was
/// the filter which ended it is checked.
pub(crate) fn came_to_its_end(mut process: Command) -> bool {
    use std::os::unix::process::ExitStatusExt as _;
    let output = process.output().expect("it can be started");
    let killed = output.status.signal() == Some(libc::SIGSYS);
    assert!(
        output.status.success() || killed,
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    output.status.success()
}
