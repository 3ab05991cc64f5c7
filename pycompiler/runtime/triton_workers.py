"""Worker processes that compile Triton kernels side by side.

In: `Job`s, from any thread.  Out: the fields of their binaries, or None if the caller is to compile the job itself: no worker
can be started, or Triton in a worker refused the kernel (then the caller gets Triton's own exception).

Example: `WORKERS.compile(job, batch)`, in as many threads as jobs are to run side by side.

Processes and not threads: Triton holds the interpreter's lock for a third of a compile, which also slows the program down
while a background thread compiles.

- A worker starts when a job finds none free, at most `limit()`.  Workers live until the program ends, or are idle.
- A worker that crashes during a job is replaced, and the job is started once more; after a second crash it is an error.
- A forked process closes its copies of the pipes and has no workers: each process has its own.
- Workers are in a session of their own, so Ctrl-C does not reach them.  The thread that waits is interrupted, and `cancel`
  kills the workers of its batch.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import select
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from pycompiler import config
from pycompiler.runtime import triton_worker
from pycompiler.runtime.triton_compile import Job, LaunchData
from pycompiler.runtime.triton_worker import receive, send, triton_variables
from pycompiler.torch_compat.interrupts import Stopped, stop_callbacks

log = logging.getLogger("pycompiler.runtime")

START_S = 60.0  # a worker that has not imported Triton after this time hangs
MOST_WORKERS = 32
JOBS_EACH = 3  # jobs of a worker that make up for its start: an import of Triton takes as long as three kernels
ATTEMPTS = 2
END_S = 1.0  # a process that has closed its pipe ends in this time


class WorkerEnded(Exception):
    """The process ended, or its pipe is closed."""


class Batch:
    """The jobs that one thread waits for."""

    def __init__(self) -> None:
        self.is_cancelled = False


def limit() -> int:
    """The largest number of workers; 1: none."""
    return config.compile_threads or min(MOST_WORKERS, len(os.sched_getaffinity(0)))


class Worker:
    """A running worker process.  Raises OSError or WorkerEnded if it cannot be started."""

    def __init__(self, version: str) -> None:
        if getattr(sys, "frozen", False) or "python" not in Path(sys.executable or "").name.lower():
            raise OSError("the program contains its own Python")  # sys.executable would be the program
        answers, theirs = os.pipe()  # not stdout, to which the start of any Python program may print
        self.answers = os.fdopen(answers, "rb", buffering=0)
        try:
            command = [sys.executable, "-P", str(Path(triton_worker.__file__)), str(theirs)]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0,
                                            pass_fds=(theirs,), start_new_session=True)  # fmt: skip
        except BaseException:
            self.answers.close()
            raise
        finally:
            os.close(theirs)
        self.batch: Batch | None = None
        assert self.process.stdin is not None
        self.jobs = self.process.stdin
        try:
            found = self._ask([os.path.abspath(p) for p in sys.path], START_S)
            if found != version:
                raise WorkerEnded(f"its Triton is {found}, not {version}")
        except BaseException:
            self.kill()
            raise

    def ask(self, job: Job) -> LaunchData | str:
        """The fields of the job's binary, or the text of an error."""
        answer: LaunchData | str = self._ask((job, triton_variables(os.environ)), None)
        return answer

    def _ask(self, message: object, timeout: float | None) -> Any:
        try:
            send(self.jobs.fileno(), message)
            if not select.select([self.answers], [], [], timeout)[0]:
                raise WorkerEnded(f"no answer in {timeout} seconds")
            return receive(self.answers.fileno())
        except (OSError, EOFError, ValueError) as error:  # ValueError: closed by `kill`
            raise WorkerEnded(str(error)) from error

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        """End the process, and wait for its end."""
        self.process.kill()
        self.process.wait()
        self.close()

    def close(self) -> None:
        for pipe in (self.jobs, self.answers):
            with contextlib.suppress(OSError):
                pipe.close()

    def forget(self) -> None:
        """In a forked process: the worker belongs to the parent."""
        self.process.returncode = 0  # this process cannot wait for it
        self.close()


class Workers:
    """The workers of this process."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.idle: list[Worker] = []
        self.busy: set[Worker] = set()
        self.starting = 0
        self.started = 0  # so far
        self.is_broken = False  # a worker could not be started, so no further one is
        self.is_stopped = False
        self.is_registered = False

    def useful(self, jobs: int) -> int:
        """How many workers to use for so many jobs; 0: the caller compiles them itself."""
        if limit() < 2 or self.is_broken:
            return 0
        with self.changed:
            running = len(self.idle) + len(self.busy)
        count = min(limit(), max(jobs // JOBS_EACH, min(running, jobs)))
        return count if count >= 2 or running and count else 0

    def compile(self, job: Job, batch: Batch, version: str) -> LaunchData | None:
        """The fields of the job's binary; None: the caller compiles the job.  Waits for a free worker.  `version`: Triton's."""
        status: int | None = None
        crashes = 0
        for _ in range(2 * MOST_WORKERS):  # all may end, after a time without jobs, when their next jobs come
            if crashes == ATTEMPTS:
                break
            worker = self._taken(batch, version)
            if worker is None:
                return None
            try:
                answer = worker.ask(job)
            except WorkerEnded:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    worker.process.wait(END_S)  # for its own status
                self._drop(worker)
                status = worker.process.returncode
                crashes += status != 0
                continue
            except BaseException:
                self._drop(worker)
                raise
            self._give_back(worker)
            if isinstance(answer, str):
                log.info("a worker could not compile %s: %s", job.kernel, answer)
                return None
            return answer
        if batch.is_cancelled:
            raise Stopped
        raise RuntimeError(f"{crashes} processes ended (status {status}) while they compiled a kernel:\n{job.text}")

    def _taken(self, batch: Batch, version: str) -> Worker | None:
        with self.changed:
            while True:
                if batch.is_cancelled or self.is_stopped:
                    raise Stopped
                while self.idle:
                    worker = self.idle.pop()
                    if not worker.has_ended():
                        return self._begin(worker, batch)
                    worker.close()
                if self.is_broken:
                    return None
                if len(self.busy) + self.starting < limit():
                    self.starting += 1
                    break
                self.changed.wait()
        return self._new(batch, version)

    def _new(self, batch: Batch, version: str) -> Worker | None:
        worker = None
        try:
            worker = Worker(version)
        except (OSError, WorkerEnded) as error:
            log.info("kernels are compiled in this process: no worker can be started: %s", error)
            self.is_broken = True
        finally:
            with self.changed:
                self.starting -= 1
                self.changed.notify_all()
                if worker is not None:
                    self.started += 1
                    self._begin(worker, batch)
        if batch.is_cancelled and worker is not None:  # it was not busy yet when the batch was cancelled
            self._drop(worker)
            raise Stopped
        return worker

    def _begin(self, worker: Worker, batch: Batch) -> Worker:
        if not self.is_registered:
            self.is_registered = True
            atexit.register(self.stop)
        worker.batch = batch
        self.busy.add(worker)
        return worker

    def _give_back(self, worker: Worker) -> None:
        with self.changed:
            worker.batch = None
            self.busy.discard(worker)
            self.idle.append(worker)
            self.changed.notify_all()

    def _drop(self, worker: Worker) -> None:
        worker.kill()
        with self.changed:
            self.busy.discard(worker)
            self.changed.notify_all()

    def cancel(self, batch: Batch) -> None:
        """Kill the workers of a batch, whose threads then raise `Stopped`."""
        with self.changed:
            batch.is_cancelled = True
            found = [worker for worker in self.busy if worker.batch is batch]
            self.changed.notify_all()
        for worker in found:
            worker.process.kill()  # its thread gets the end of the pipe, and drops it

    def stop(self) -> None:
        """End all workers, at the end of the process: no further one starts."""
        self.is_broken = self.is_stopped = True
        for worker in list(self.busy):
            worker.process.kill()  # its thread gets the end of the pipe, and drops it
        for worker in list(self.idle):
            worker.kill()

    def after_fork(self) -> None:
        for worker in (*self.idle, *self.busy):
            worker.forget()
        registered = self.is_registered
        self.__init__()  # type: ignore[misc]
        self.is_registered = registered


WORKERS = Workers()
stop_callbacks.append(WORKERS.stop)
os.register_at_fork(after_in_child=WORKERS.after_fork)
