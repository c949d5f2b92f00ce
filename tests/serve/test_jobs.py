"""The queue by itself, for moments that a running server passes through too fast to be asked about."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from layactl.errors import RequestError
from layactl.serve.jobs import Job, JobQueue, Stop, run_job

ANSWER = {"answers": {}}


def job(answer: Any = ANSWER) -> Job:
    return Job(lambda stop, queue_ms: answer)


def taken(queue: JobQueue) -> Job:
    job = queue.take()
    assert job is not None
    return job


def outcome(job: Job) -> Any:
    """What its client is told: the answer, or the reason of its refusal; None while it is undecided."""
    assert job.settled.is_set() is (job.outcome is not None)
    return job.outcome.reason if isinstance(job.outcome, RequestError) else job.outcome


def refused(queue: JobQueue) -> str | None:
    refusal = queue.refusal()
    if refusal is not None:
        with pytest.raises(type(refusal)) as submitted:
            queue.submit(job())
        assert submitted.value.reason == refusal.reason
    return refusal.reason if refusal else None


@pytest.mark.parametrize("capacity", [0, 1, 4])
def test_an_idle_worker_takes_one_and_so_many_wait_while_it_runs(capacity: int):
    queue = JobQueue(capacity)
    jobs = [job() for _ in range(capacity + 1)]
    queue.submit(jobs[0])
    running = taken(queue)
    for waiting in jobs[1:]:
        queue.submit(waiting)
    assert (queue.running, queue.waiting) == (1, capacity)
    assert refused(queue) == "OVERLOADED"
    queue.finish(running, ANSWER)
    for waiting in jobs[1:]:
        assert taken(queue) is waiting
        queue.finish(waiting, ANSWER)
    assert [outcome(job) for job in jobs] == [ANSWER] * len(jobs)
    assert (queue.running, queue.waiting, refused(queue)) == (0, 0, None)


def test_a_running_job_that_is_cancelled_takes_no_place_while_its_last_pass_runs():
    queue = JobQueue(0)
    first, second = job(), job()
    queue.submit(first)
    assert taken(queue) is first
    queue.cancel(first)
    assert (queue.running, refused(queue)) == (0, None)
    queue.submit(second)
    assert refused(queue) == "OVERLOADED"
    # Its result comes too late to be told to anybody.
    queue.finish(first, ANSWER)
    assert outcome(first) == "UNAVAILABLE"
    assert taken(queue) is second


def test_a_waiting_job_that_is_cancelled_is_never_taken():
    queue = JobQueue(2)
    jobs = [job() for _ in range(3)]
    for waiting in jobs:
        queue.submit(waiting)
        if waiting is jobs[0]:
            assert taken(queue) is waiting
    queue.cancel(jobs[1])
    assert (outcome(jobs[1]), queue.waiting, refused(queue)) == ("UNAVAILABLE", 1, None)
    queue.finish(jobs[0], ANSWER)
    assert taken(queue) is jobs[2]


def test_a_cancelled_job_is_stopped_at_its_next_look():
    queue = JobQueue(0)
    looks = []

    def compute(stop: Stop, queue_ms: float) -> dict[str, Any]:
        for look in range(3):
            looks.append(look)
            queue.cancel(cancelled)
            stop()
        return ANSWER

    cancelled = Job(compute)
    queue.submit(cancelled)
    run_job(queue, taken(queue), log=pytest.fail)
    assert (looks, outcome(cancelled)) == ([0], "UNAVAILABLE")


def test_a_job_is_settled_once():
    queue = JobQueue(1)
    done = job()
    queue.submit(done)
    queue.finish(taken(queue), ANSWER)
    queue.cancel(done)
    queue.close()
    assert outcome(done) == ANSWER


def test_a_closed_queue_tells_all_and_takes_none():
    queue = JobQueue(2)
    jobs = [job() for _ in range(3)]
    queue.submit(jobs[0])
    running = taken(queue)
    for waiting in jobs[1:]:
        queue.submit(waiting)
    queue.close()
    assert [outcome(job) for job in jobs] == ["UNAVAILABLE"] * 3
    queue.finish(running, ANSWER)
    assert outcome(running) == "UNAVAILABLE"
    assert refused(queue) == "UNAVAILABLE"
    assert queue.take() is None


def test_a_waiting_worker_is_woken_by_a_close():
    queue = JobQueue(0)
    answers: list[Job | None] = []
    worker = threading.Thread(target=lambda: answers.append(queue.take()))
    worker.start()
    queue.close()
    worker.join(60)
    assert answers == [None]


def test_a_refusal_is_told_and_an_error_of_ours_is_logged():
    queue, logged = JobQueue(1), []

    def refuse(stop: Stop, queue_ms: float) -> dict[str, Any]:
        raise RequestError("STATE_TRUNCATED", "too long", code=422)

    def fail(stop: Stop, queue_ms: float) -> dict[str, Any]:
        raise ValueError("secret")

    for compute, reason in ((refuse, "STATE_TRUNCATED"), (fail, "INTERNAL")):
        work = Job(compute)
        queue.submit(work)
        run_job(queue, taken(queue), logged.append)
        assert outcome(work) == reason
        assert "secret" not in str(work.outcome)
    assert [str(error) for error in logged] == ["secret"]
