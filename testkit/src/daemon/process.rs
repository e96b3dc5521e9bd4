//! Child processes that do not outlive a test.

use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::Instant;

use super::{PATIENCE, POLL, wait_until};

/// Returns `program`, run after a line of shell in the same process.
pub(super) fn after_shell(line: &str, program: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{line}; exec \"$0\" \"$@\"")]);
    command.arg(program);
    command
}

/// Returns `program`, run in the control group of the directory `group` from its first instruction.
#[must_use]
pub fn in_group(group: &Path, program: &Path) -> Command {
    let mut command = Command::new("sh");
    let enter = r#"echo $$ >"$0/cgroup.procs" && exec "$@""#;
    command.args(["-c", enter]).arg(group).arg(program);
    command
}

/// Returns `program`, run by `wrapper` in the same process, as `taskset --cpu-list 0` does.
pub(super) fn wrapped(wrapper: &[&str], program: &Path) -> Command {
    let mut command = Command::new(wrapper[0]);
    command.args(&wrapper[1..]).arg(program);
    command
}

/// A child process, killed on drop.
#[derive(Debug)]
pub struct Process(Option<Child>);

impl Process {
    /// Starts `command`.
    ///
    /// # Panics
    /// Panics if the program cannot be run.
    #[must_use]
    pub fn spawn(command: &mut Command) -> Self {
        let child = command.spawn();
        Self(Some(
            child.unwrap_or_else(|error| panic!("{command:?}: {error}")),
        ))
    }

    /// Starts `command` with pipes for its output, for [`Process::output`].
    ///
    /// # Panics
    /// Panics if the program cannot be run.
    #[must_use]
    pub fn spawn_piped(command: &mut Command) -> Self {
        Self::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
    }

    fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("only `output` takes it")
    }

    /// Takes the pipe of standard output, if `command` had one.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child().stdout.take()
    }

    /// Returns the process number.
    ///
    /// # Panics
    /// Never: only `output`, which consumes the process, takes the child.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.0.as_ref().expect("only `output` takes it").id()
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// Panics if the process has been waited for.
    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: no memory is involved; the number is the child's until the child is waited for.
        let sent = unsafe { libc::kill(self.id().cast_signed(), signal) };
        assert_eq!(sent, 0, "signal {signal}");
    }

    /// Returns the exit status if the process has ended.
    ///
    /// # Panics
    /// Panics if it cannot be waited for.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child().try_wait().expect("a child")
    }

    /// Returns the exit status if the process ends within [`PATIENCE`].
    ///
    /// # Panics
    /// Panics if it cannot be waited for.
    pub fn wait(&mut self) -> Option<ExitStatus> {
        let begin = Instant::now();
        loop {
            let status = self.try_wait();
            if status.is_some() || begin.elapsed() > PATIENCE {
                return status;
            }
            std::thread::sleep(POLL);
        }
    }

    /// Sends SIGKILL and waits for the end.
    ///
    /// # Panics
    /// Panics if it cannot be waited for.
    pub fn kill(&mut self) -> ExitStatus {
        self.child().kill().expect("the signal is sent");
        self.child().wait().expect("a child")
    }

    /// Waits for the end, and returns the exit status with the output in the pipes.
    ///
    /// Kills a process that does not end within [`PATIENCE`]: its status is that of the signal.
    ///
    /// # Panics
    /// Panics if it cannot be waited for.
    #[must_use]
    pub fn output(mut self) -> Output {
        if self.wait().is_none() {
            self.kill();
        }
        let child = self.0.take().expect("nothing else takes it");
        child.wait_with_output().expect("a child")
    }

    /// Waits until the process has a handler for a signal, which would end it otherwise.
    ///
    /// # Panics
    /// Panics if that takes longer than [`PATIENCE`].
    pub fn wait_until_caught(&self, signal: libc::c_int) {
        let status = format!("/proc/{}/status", self.id());
        let catches = || {
            let status = std::fs::read_to_string(&status).expect("it runs");
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            let caught = caught.expect("proc(5) has it").trim();
            let caught = u64::from_str_radix(caught, 16).expect("a mask");
            caught & 1 << (signal - 1) != 0
        };
        wait_until(POLL, catches, || format!("signal {signal} has no handler"));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
