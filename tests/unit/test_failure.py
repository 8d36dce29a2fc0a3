"""Why a launch failed, from what its processes wrote: whole outputs of torchrun, Ray and plain programs."""

from __future__ import annotations

import textwrap
from dataclasses import replace

import pytest

from laggard.resilience.decision import wording
from laggard.resilience.decision.failure import Failure, explain, only_lost_its_peer, raised_and_stays
from laggard.resilience.decision.origin import ProcessEnd, Standing, Witness
from laggard.resilience.reading.error_output import complaints_of, root_cause_of

T0 = 1e9
ECC = "CUDA error: uncorrectable ECC error encountered"
WARNED = (
    "/env/torch/nn.py:9: UserWarning: CUDA error: an illegal memory access was encountered\n  warnings.warn(text)\n"
)
GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:43439."


def end(text: str = "", *, host: str = "node2", exit_code: int = 1, ended_s: float = T0) -> ProcessEnd:
    lines = tuple(textwrap.dedent(text).strip("\n").splitlines())
    return ProcessEnd(host, 4211, exit_code, ended_s, 724.0, lines)


def torchrun(own: str, rank: int, exit_code: int = 1) -> str:
    """Return what torchrun writes on the node where a rank failed."""
    return (
        textwrap.dedent(own)
        + f"""
W1122 13:31:21.081000 10805 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 10808 closing signal
E1122 13:31:21.114000 10805 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {exit_code})
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/env/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_13:31:21
  host      : localhost
  rank      : {rank} (local_rank: 1)
  exitcode  : {exit_code} (pid: 10809)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
    )


def raised(rank: int, error: str, function: str = "step") -> str:
    return "\n".join(
        f"[rank{rank}]: {line}"
        for line in (
            "Traceback (most recent call last):",
            '  File "/home/me/train.py", line 88, in <module>',
            "    main()",
            f'  File "/home/me/train.py", line 41, in {function}',
            "    loss.backward()",
            '  File "/env/lib/python3.11/site-packages/torch/_tensor.py", line 581, in backward',
            "    torch.autograd.backward(",
            error,
        )
    )


def why(*ends: ProcessEnd) -> Failure:
    return explain(ends, {"10.0.0.2": "node2", "10.0.0.3": "node3"})


def test_the_sentence_names_rank_node_exit_code_time_and_cause() -> None:
    failure = why(end(torchrun(raised(5, f"RuntimeError: {ECC}"), 5)))
    assert wording.failure(failure) == (
        f"rank 5 on node2 exited with 1 after 12 min 4 s: RuntimeError: {ECC} "
        "(hardware: uncorrectable memory error of a GPU)"
    )
    assert (failure.host, failure.rank, failure.pid) == ("node2", 5, 10809)


def test_a_signal_is_named_and_the_job_would_end_with_128_and_its_number() -> None:
    failure = why(end(exit_code=-6))
    assert wording.failure(failure) == "the program on node2 was killed by SIGABRT after 12 min 4 s"
    assert (failure.job_exit_code, failure.kind) == (134, "unknown")


def test_a_signal_that_has_no_name_has_a_number() -> None:
    assert "killed by signal 77 after" in wording.failure(why(end(exit_code=-77)))


def test_the_rank_that_torchrun_names_was_killed_by_a_signal() -> None:
    failure = why(end(torchrun("", 3, -9)))
    assert wording.failure(failure).startswith("rank 3 on node2 was killed by SIGKILL after")
    assert (failure.exit_code, failure.job_exit_code) == (-9, 1)


@pytest.mark.parametrize("seconds_later", [-30.0, 0.0, 30.0])
def test_who_only_noticed_it_was_not_first_however_early_it_ended(seconds_later: float) -> None:
    culprit = end(torchrun(raised(5, f"RuntimeError: {ECC}"), 5), ended_s=T0)
    other = end(torchrun(raised(0, f"RuntimeError: {GLOO}"), 0), host="node1", ended_s=T0 + seconds_later)
    for ends in ((culprit, other), (other, culprit)):
        assert (why(*ends).host, why(*ends).rank) == ("node2", 5)


def test_a_child_that_was_killed_below_a_shell_is_named_and_comes_before_those_that_say_nothing() -> None:
    shell = end("./run.sh: line 6: 3470 Killed  python train.py", exit_code=137, ended_s=T0 + 1)
    failure = why(shell, end(host="node1", exit_code=3))
    assert wording.failure(failure) == (
        "the program on node2 exited with 137 (SIGKILL of a child) after 12 min 4 s: ./run.sh: line 6: 3470 Killed  "
        "python train.py (capacity: it was killed); also ended: node1 with 3 1.0 s earlier"
    )


@pytest.mark.parametrize(("exit_code", "subject"), [(1, "rank 3"), (3, "the program"), (137, "the program")])
def test_a_rank_that_only_noticed_it_did_not_end_with_the_code_of_another_below_the_same_script(
    exit_code: int, subject: str
) -> None:
    script = end(raised(3, f"RuntimeError: {GLOO}"), exit_code=exit_code, ended_s=T0 + 1)
    noticed = end(raised(0, f"RuntimeError: {GLOO}"), host="node1", ended_s=T0 + 2)
    assert wording.failure(why(script, noticed)).startswith(f"{subject} on node2 ")
    assert only_lost_its_peer(script) == (subject == "rank 3")


def test_a_rank_of_the_same_node_that_only_noticed_it_was_not_first_either() -> None:
    both = f"{raised(0, f'RuntimeError: {GLOO}')}\n{raised(5, f'RuntimeError: {ECC}')}\n"
    assert why(end(torchrun(both, 0))).rank == 5


def test_a_rank_that_says_why_comes_before_lines_of_nobody() -> None:
    lines = f"OSError: [Errno 98] Address already in use\n{raised(0, GLOO)}\n{raised(5, f'RuntimeError: {ECC}')}\n"
    assert (why(end(torchrun(lines, 0))).rank, why(end(torchrun(lines, 0))).kind) == (5, "hardware")


def test_a_process_killed_by_a_signal_comes_before_those_that_noticed() -> None:
    killed = end(torchrun("", 3, -9), ended_s=T0 + 1)
    other = end(torchrun(raised(0, f"RuntimeError: {GLOO}"), 0), host="node1")
    assert (why(other, killed).host, why(other, killed).rank) == ("node2", 3)


def test_what_ranks_wrote_to_error_files_of_their_own_is_read_in_torchruns_summary() -> None:
    """With ``@record``, and standard error redirected to files."""

    def entry(rank: int, error: str) -> str:
        return textwrap.dedent(
            f"""
            [{rank}]:
              time      : 2026-11-22_13:31:21
              host      : localhost
              rank      : {rank} (local_rank: {rank})
              exitcode  : 1 (pid: 1080{rank})
              error_file: /tmp/logs/attempt_0/{rank}/error.json
              traceback : Traceback (most recent call last):
                File "/home/u/train.py", line 7, in step
                  dist.barrier()
              {error}

            """
        ).strip("\n")

    summary = "\n".join(
        [
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
            "Failures:",
            entry(1, f"RuntimeError: {ECC}"),
            "-" * 60,
            "Root Cause (first observed failure):",
            entry(0, f"RuntimeError: {GLOO}"),
            "=" * 60,
        ]
    )
    failure = why(end(summary))
    assert (failure.rank, failure.quote) == (1, f"RuntimeError: {ECC}")
    assert failure.fingerprint.endswith("train.py:step")


def test_among_equals_the_earliest_was_first() -> None:
    first = end(raised(1, "RuntimeError: lost the plot"), ended_s=T0)
    second = end(raised(2, "RuntimeError: lost the plot"), host="node3", ended_s=T0 + 0.1)
    assert why(second, first).rank == 1


@pytest.mark.parametrize(
    ("ended", "standing"),
    [
        (end(raised(0, ECC)), Standing.CAUSE),
        (end("OSError: [Errno 28] No space left on device", exit_code=-9), Standing.CAUSE),
        (end(exit_code=-9), Standing.SIGNAL),
        (end("a word that says nothing", exit_code=-9), Standing.SIGNAL),
        (end(exit_code=-6), Standing.SIGNAL),
        (end(exit_code=-11), Standing.SIGNAL),
        (end("step 7\nINFO connection closed by a client", exit_code=-11), Standing.SIGNAL),  # some line of a log
        (end(exit_code=137), Standing.SIGNAL),  # a shell's word for a child of its own
        (end(exit_code=247), Standing.SIGNAL),  # DeepSpeed's, which says more on its standard output only
        (end(torchrun("", 1, -9)), Standing.SIGNAL),
        (end(raised(0, "MyError: odd")), Standing.ERROR),
        (end("KeyError: 7"), Standing.ERROR),
        (end(exit_code=3), Standing.CODE),
        (end(torchrun("", 1, 3)), Standing.CODE),
        (replace(end(), exit_code=None, is_worker=True), Standing.WORKER),
        (end(exit_code=1), Standing.ANSWER),
        (end(torchrun("", 1, 1)), Standing.ANSWER),
        (end(exit_code=-15), Standing.ANSWER),
        (end(exit_code=143), Standing.ANSWER),
        (end(exit_code=0), Standing.LEFT),
        (end(raised(0, GLOO)), Standing.LOST_PEER),
        (end(WARNED + raised(0, GLOO)), Standing.LOST_PEER),
        (end(raised(0, GLOO) + "\nrun summary: 7 steps"), Standing.LOST_PEER),
        (end(raised(0, GLOO), exit_code=-9), Standing.LOST_PEER),  # it was ending already
        (end(GLOO, exit_code=-6), Standing.LOST_PEER),  # a watchdog aborts a rank whose peers are gone
        (end(exit_code=-13), Standing.LOST_PEER),  # it wrote to a peer that was gone
        (end(exit_code=141), Standing.LOST_PEER),
    ],
)
def test_an_end_is_worth_the_more_the_less_a_peer_can_bring_it_about(ended: ProcessEnd, standing: Standing) -> None:
    assert Witness.of(ended).standing is standing
    assert only_lost_its_peer(ended) == (standing is Standing.LOST_PEER)


def lingering(text: str, rank: int | None = 5) -> ProcessEnd:
    return replace(end(text), rank=rank, lingers_s=61.0)


def test_a_rank_that_raised_and_does_not_end_has_failed_of_its_error() -> None:
    failure = why(lingering(raised(5, "KeyError: 'labels'")))
    assert wording.failure(failure) == (
        "rank 5 on node2 raised an error and has hung for 61.0 s since: KeyError: 'labels' "
        "(program: an error in its code)"
    )
    assert failure.job_exit_code == 1


@pytest.mark.parametrize(
    ("ended", "ending", "expected"),
    [
        (lingering(raised(5, "KeyError: 'labels'")), {("node2", 5)}, True),
        (lingering(raised(5, "KeyError: 'labels'"), rank=None), {("node2", 5)}, True),  # below torchrun
        (lingering(raised(5, "KeyError: 'labels'")), {("node2", 4), ("node1", 5)}, False),  # it was caught, and goes on
        (lingering(raised(5, f"RuntimeError: {GLOO}")), {("node2", 5)}, False),  # because of another
        (lingering("saved the model"), {("node2", 5)}, False),  # it only takes long to end
        (lingering(""), {("node2", 5)}, False),
    ],
)
def test_only_what_is_ending_after_an_error_of_its_own_has_failed(
    ended: ProcessEnd, ending: set[tuple[str, int | None]], *, expected: bool
) -> None:
    assert raised_and_stays(ended, ending) == expected


IN_A_BOX = f"""
    ╭───────────────────── Traceback (most recent call last) ──────────────────────╮
    │ /home/me/train.py:9 in <module>                                              │
    │                                                                              │
    │    8 # RuntimeError: CUDA out of memory                                      │
    │ ❱  9 main()                                                                  │
    │                                                                              │
    │ ╭──────────── locals ─────────────╮                                          │
    │ │ error = KeyError('labels')      │                                          │
    │ ╰─────────────────────────────────╯                                          │
    │                                                                              │
    │ /home/me/a/folder/with/a/name/that/does/not/fit/into/a/line/together/with/th │
    │ e/file/step.py:3 in step                                                     │
    │                                                                              │
    │ ❱  3 │   raise RuntimeError("CUDA error: out of memory, so it seems")        │
    ╰──────────────────────────────────────────────────────────────────────────────╯
    RuntimeError: {ECC}
"""
BY_LOGURU = f"""
    2026-11-24 06:42:25.902 | ERROR    | __main__:<module>:15 - training failed
    Traceback (most recent call last):

    > File "/home/me/train.py", line 9, in <module>
        step(1)
        └ <function step at 0x7f1759114720>

      File "/home/me/step.py", line 3, in step
        raise RuntimeError("CUDA error: out of memory")

    RuntimeError: {ECC}
"""


@pytest.mark.parametrize("text", [IN_A_BOX, BY_LOGURU], ids=["rich", "loguru"])
def test_tracebacks_of_other_libraries_are_read_like_pythons_own(text: str) -> None:
    failure = why(end(text))
    assert failure.quote == f"RuntimeError: {ECC}"
    assert failure.fingerprint.endswith("RuntimeError < step.py:step < train.py:<module>")


def test_a_chain_of_errors_in_boxes_begins_with_the_first() -> None:
    chain = (
        f"{IN_A_BOX}\n    The above exception was the direct cause of the following exception:\n"
        + IN_A_BOX.replace(ECC, "[Errno 28] No space left on device")
    )
    assert why(end(chain)).cause == "uncorrectable memory error of a GPU"


def test_the_first_error_of_a_chain_says_why() -> None:
    chain = f"""
        Traceback (most recent call last):
          File "/home/me/train.py", line 9, in step
            launch()
        RuntimeError: {ECC}

        During handling of the above exception, another exception occurred:

        Traceback (most recent call last):
          File "/home/me/train.py", line 12, in main
            save()
        OSError: [Errno 28] No space left on device
    """
    assert why(end(chain)).cause == "uncorrectable memory error of a GPU"


def test_the_first_of_three_errors_in_a_chain_says_why_and_one_before_the_chain_does_not() -> None:
    raised_by = 'Traceback (most recent call last):\n  File "/home/me/a.py", line 1, in f\n'
    another = "\nThe above exception was the direct cause of the following exception:\n\n"
    chain = another.join(f"{raised_by}{error}" for error in (f"RuntimeError: {ECC}", "KeyError: 1", "MyError: 2"))
    before = f"{raised_by}TypeError: survived\n" + "step\n" * 60
    failure = why(end(before + chain))
    assert failure.cause == "uncorrectable memory error of a GPU"
    assert failure.fingerprint.endswith("RuntimeError < a.py:f")


def test_an_error_that_was_survived_long_before_does_not_say_why() -> None:
    survived = """
        Traceback (most recent call last):
          File "/home/me/train.py", line 9, in step
            launch()
        torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
    """
    later = "step 2\n" * 60 + 'Traceback (most recent call last):\n  File "/home/me/a.py", line 1, in f\nMyError: odd\n'
    failure = why(end(textwrap.dedent(survived) + later))
    assert (failure.quote, failure.kind) == ("MyError: odd", "unknown")


def test_what_a_library_logged_before_the_error_says_why() -> None:
    log = "n7:812:1034 [3] NCCL WARN NET/IB : Got completion from peer 10.0.0.3<40313> with status=12 hca mlx5_3\n"
    failure = why(end(log + raised(5, "RuntimeError: ncclRemoteError: A call failed")))
    assert failure.cause == "InfiniBand completion with an error"


def test_what_a_library_logged_does_not_say_why_a_program_raised_an_error_of_its_own() -> None:
    log = "n7:812:1034 [3] NCCL WARN NET/IB : Got completion from peer 10.0.0.3<40313> with status=12 hca mlx5_3\n"
    assert why(end(f"[rank5]: {log}{raised(5, 'MyError: odd')}")).quote == "MyError: odd"


def test_of_two_lines_that_tell_of_another_process_the_first_is_quoted() -> None:
    lines = f"{raised(5, f'RuntimeError: {GLOO}')}\n[rank5]: RuntimeError: ncclRemoteError: A call failed"
    assert why(end(lines)).quote == f"RuntimeError: {GLOO}"


def test_a_crash_that_the_table_does_not_know_says_more_than_a_rank_that_noticed_it() -> None:
    noticed, crash = raised(0, f"RuntimeError: {GLOO}"), "[rank5]: terminate called without an active exception"
    assert [each.rank for each in complaints_of(f"{noticed}\n{crash}".splitlines())] == [5, 0]


def test_ranks_that_say_why_come_first_and_those_that_say_nothing_last() -> None:
    told = [
        "batch 7",
        f"RuntimeError: {GLOO}",
        "terminate called without an active exception",
        *raised(0, "MyError: odd").replace("[rank0]: ", "").splitlines(),
        f"RuntimeError: {ECC}",
    ]
    ranks = [0, 1, 2, *[3] * (len(told) - 4), 4]
    lines = [f"[rank{rank}]: {line}" for rank, line in zip(ranks, told, strict=True)]
    assert [each.rank for each in complaints_of(lines)] == [4, 3, 2, 1, 0]


def test_what_follows_torchruns_summary_does_not_change_what_it_says() -> None:
    whole = torchrun("", 3, -9).splitlines()
    for later in ("  rank      : 5 (local_rank: 0)", "  exitcode  : 1 (pid: 77)"):
        root = root_cause_of([*whole, later])
        assert root is not None
        assert (root.rank, root.exit_code, root.pid) == (3, -9, 10809)


@pytest.mark.parametrize("marks", ["", f"{' ' * 11}^^^^^^\n{' ' * 23}^^^^^^^^^^^^^^^"])
def test_an_error_of_rays_worker_names_the_node_of_the_worker(marks: str) -> None:
    failure = why(
        end(
            f"""
            Traceback (most recent call last):
              File "/home/me/driver.py", line 5, in <module>
                ray.get(work.remote())
              File "/env/lib/python3.11/site-packages/ray/_private/worker.py", line 2961, in get
                raise value.as_instanceof_cause()
            ray.exceptions.RayTaskError(KeyError): ray::work() (pid=812, ip=10.0.0.3)
            {marks}
              File "/home/me/driver.py", line 3, in work
                labels["x"]
            KeyError: 'x'
            """,
            host="node1",
        )
    )
    assert (failure.host, failure.quote, failure.kind) == ("node3", "KeyError: 'x'", "program")
    assert "driver.py:work" in failure.fingerprint


@pytest.mark.parametrize(
    ("text", "exit_code", "ran_s", "is_usage"),
    [
        ("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --x", 2, 724.0, True),
        ("whatever", 2, 10.0, True),
        ("whatever", 2, 10.1, False),
        ("KeyError: 'labels'", 2, 1.0, False),
        ("", 1, 1.0, False),
    ],
)
def test_wrong_arguments_are_told_by_what_is_printed_or_by_an_exit_at_once(
    text: str, exit_code: int, ran_s: float, is_usage: bool
) -> None:
    assert why(replace(end(text, exit_code=exit_code), ran_s=ran_s)).is_usage == is_usage


@pytest.mark.parametrize(("text", "is_proof"), [(f"RuntimeError: {ECC}", True), ("KeyError: 'x'", False), ("", False)])
def test_what_only_a_bad_node_writes_is_known(text: str, *, is_proof: bool) -> None:
    assert why(end(text)).is_proof == is_proof


def test_what_ranks_differ_in_is_known_and_named_by_the_rank_that_noticed_it() -> None:
    mismatch = (
        "Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?"
    )
    noticed = f"""
        terminate called after throwing an instance of 'gloo::EnforceNotMet'
          what():  [enforce fail at /pytorch/gloo/transport/tcp/pair.cc:456] op.nbytes. 8 vs 4. {mismatch}
    """
    lost = replace(end(raised(1, f"RuntimeError: {GLOO}"), host="node1"), rank=1, ended_s=T0 - 0.1)
    failure = why(replace(end(noticed, exit_code=-6), rank=0), lost)
    assert (failure.is_shared, failure.kind, failure.host, failure.rank) == (True, "program", "node2", 0)
    assert failure.quote.startswith("what():  [enforce fail")
    assert not why(end("KeyError: 'x'")).is_shared


def test_one_rank_of_several_that_exits_with_2_does_not_speak_of_the_arguments() -> None:
    first = replace(end("", exit_code=2), ran_s=1.0)
    assert why(first, replace(first, host="node3")).is_usage
    assert not why(first, replace(first, host="node3", exit_code=1)).is_usage


def test_the_same_error_at_the_same_place_has_the_same_fingerprint_whatever_its_numbers() -> None:
    first = why(end(raised(5, "ValueError: loss of 812.4 at step 9")))
    again = why(end(raised(3, "ValueError: loss of 1.4 at step 812"), host="node3", ended_s=T0 + 1e5))
    elsewhere = why(end(raised(5, "ValueError: loss of 812.4 at step 9", function="load")))
    another = why(end(raised(5, "KeyError: 812")))
    assert first.fingerprint == again.fingerprint
    assert len({first.fingerprint, elsewhere.fingerprint, another.fingerprint}) == 3


def test_only_the_users_own_functions_are_the_place() -> None:
    assert "backward" not in why(end(raised(5, "MyError: odd"))).fingerprint
    assert "train.py:step < train.py:<module>" in why(end(raised(5, "MyError: odd"))).fingerprint


@pytest.mark.parametrize(("n_lines", "says_why"), [(49, True), (50, False)])
def test_what_was_logged_up_to_50_lines_before_the_error_says_why(n_lines: int, says_why: bool) -> None:
    log = "n7:812:1034 [3] NCCL WARN NET/IB : Got completion from peer 10.0.0.3<40313> with status=12 hca mlx5_3\n"
    between = "".join(f"step {number}\n" for number in range(n_lines))
    error = 'Traceback (most recent call last):\n  File "/me/a.py", line 1, in f\nncclRemoteError: A call failed\n'
    failure = why(end(log + between + error))
    assert (failure.cause == "InfiniBand completion with an error") == says_why


def test_the_three_innermost_of_the_users_functions_are_the_place() -> None:
    frames = "".join(f'  File "/me/a.py", line {line}, in f{line}\n    g()\n' for line in range(5))
    failure = why(end(f"Traceback (most recent call last):\n{frames}MyError: odd\n"))
    assert failure.fingerprint.endswith("MyError < a.py:f4 < a.py:f3 < a.py:f2")


@pytest.mark.parametrize("before", [(), ("step 7",)])
def test_an_indented_line_outside_of_a_traceback_says_why(before: tuple[str, ...]) -> None:
    assert why(replace(end(), lines=(*before, f"  RuntimeError: {ECC}"))).quote == f"RuntimeError: {ECC}"


def test_a_line_of_code_in_a_traceback_does_not_say_why() -> None:
    text = """
        Traceback (most recent call last):
          File "/home/me/train.py", line 9, in step
            raise Odd("CUDA out of memory") if x else TypeError("uncorrectable ECC error")
        Odd: too many bananas
    """
    assert (why(end(text)).quote, why(end(text)).kind) == ("Odd: too many bananas", "unknown")


def test_a_long_line_is_shortened() -> None:
    assert len(why(end("KeyError: " + "x" * 10_000)).quote) == 240
    assert why(end("KeyError: " + "x" * 231)).quote == "KeyError: " + "x" * 228 + " …"
    assert why(end("KeyError: " + "x" * 230)).quote == "KeyError: " + "x" * 230


def test_colours_and_prefixes_are_not_quoted() -> None:
    assert why(end("\x1b[31m[rank1]: KeyError: 'x'\x1b[0m")).quote == "KeyError: 'x'"


BAR = "epoch 0:  12%|█▏        | 37/300 [00:01<00:07, 36.9it/s, loss=nan]"
NO_TOTAL = "37it [00:01, 36.90it/s]"


@pytest.mark.parametrize("bar", [BAR, NO_TOTAL, "[rank5]: " + BAR, "reading shard 7 ... "])
def test_a_traceback_that_begins_behind_a_progress_bar_says_why(bar: str) -> None:
    text = raised(5, "RuntimeError: stale element in batch 37")
    failure = why(end(f"{bar}{text}\n{bar}"))
    assert (failure.quote, failure.rank, failure.kind) == ("RuntimeError: stale element in batch 37", 5, "program")
    assert "train.py:step < train.py:<module>" in failure.fingerprint


def test_a_plain_traceback_behind_a_progress_bar_says_why() -> None:
    failure = why(end(f'{BAR}Traceback (most recent call last):\n  File "/me/a.py", line 1, in f\nKeyError: 7\n'))
    assert (failure.quote, failure.kind) == ("KeyError: 7", "program")


@pytest.mark.parametrize("bar", [BAR, NO_TOTAL])
def test_a_progress_bar_says_nothing_of_why(bar: str) -> None:
    assert why(end(f"{bar}\n{bar}shard 7 comes next")).last_line == "shard 7 comes next"
    assert why(end(f"shard 7 comes next\n{bar}")).last_line == "shard 7 comes next"
    assert (why(end(bar)).quote, why(end(bar)).last_line, why(end(bar)).kind) == ("", "", "unknown")


@pytest.mark.parametrize("text", ["loaded 30 items [see 1:20, page 3]", "at 100% of the [00:10] limit"])
def test_what_only_resembles_a_progress_bar_is_quoted(text: str) -> None:
    assert why(end(text)).last_line == text


LAUNCHED = """
Traceback (most recent call last):
  File "/home/me/accelerate", line 8, in <module>
    sys.exit(main())
subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.
"""


def test_a_launcher_that_tells_that_its_command_failed_does_not_say_why() -> None:
    failure = why(end(raised(5, "MyError: odd").replace("[rank5]: ", "") + LAUNCHED))
    assert failure.quote == "MyError: odd"
    assert "train.py:step" in failure.fingerprint
    survived = SURVIVED + "batch again\n" * 60
    failure = why(end(survived + raised(5, "MyError: odd").replace("[rank5]: ", "") + LAUNCHED))
    assert failure.quote == "MyError: odd"


@pytest.mark.parametrize(("n_lines", "is_launchers"), [(47, True), (48, False)])
def test_a_launchers_traceback_begins_at_most_50_lines_below_that_of_what_it_has_run(
    n_lines: int, *, is_launchers: bool
) -> None:
    own = 'Traceback (most recent call last):\n  File "/me/a.py", line 1, in f\nMyError: odd'
    assert (why(end(own + n_lines * "\nclosing" + LAUNCHED)).quote == "MyError: odd") == is_launchers


@pytest.mark.parametrize(
    "before", ["rsync: connection refused", "Traceback (most recent call last):\nOldError: 1" + 60 * "\nok"]
)
def test_a_failed_command_of_the_program_itself_says_why(before: str) -> None:
    assert why(end(before + LAUNCHED)).quote.startswith("subprocess.CalledProcessError: Command")


GROUP = """
  + Exception Group Traceback (most recent call last):
  |   File "/home/me/train.py", line 7, in main
  |     raise ExceptionGroup("two readers failed", errors)
  | ExceptionGroup: two readers failed (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/home/me/train.py", line 3, in read
    |     check(batch)
    | ShapeError: batch has shape (3,)
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "/home/me/train.py", line 3, in read
    |     check(batch)
    | LabelError: no label
    +------------------------------------
"""


@pytest.mark.parametrize("prefix", ["", "[rank5]: "])
def test_the_first_error_of_a_group_says_why(prefix: str) -> None:
    text = "\n".join(prefix + line for line in GROUP.strip("\n").splitlines())
    failure = why(end("loading\n" + text))
    assert failure.quote == "ShapeError: batch has shape (3,)"
    assert failure.fingerprint == "1 | ShapeError < train.py:read"


CRASH = """
Fatal Python error: Segmentation fault

Thread 0x00007f01 (most recent call first):
  File "/env/lib/python3.11/threading.py", line 331 in wait

Current thread 0x00007f02 (most recent call first):
  File "/home/me/train.py", line 3 in <module>

Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)
"""
THROWN = "terminate called after throwing an instance of 'mine::Error'\n  what():  no such table\n"


@pytest.mark.parametrize(
    ("text", "quote"),
    [
        (CRASH, "Fatal Python error: Segmentation fault"),
        (THROWN + CRASH.replace("Segmentation fault", "Aborted"), "what():  no such table"),
        ("terminate called without an active exception\n", "terminate called without an active exception"),
    ],
)
def test_a_crash_is_quoted_and_not_the_list_below_it(text: str, quote: str) -> None:
    failure = why(end("step 7\n" + text, exit_code=-11))
    assert failure.quote == quote


SURVIVED = 'Traceback (most recent call last):\n  File "/home/me/read.py", line 3, in read\nKeyError: 7\n'
RETRIED = "OSError: [Errno 98] Address already in use\n"
FULL = "OSError: [Errno 28] No space left on device\n"


@pytest.mark.parametrize(
    ("text", "exit_code", "what"),
    [
        ("one\ntwo\n\n", 1, ", its last line: two"),
        ("one\ntwo\n\n", -9, ", its last line: two"),
        ("INFO saving step 7\n" + BAR, -9, ", its last line: INFO saving step 7"),
        (WARNED, -9, f", its last line: {WARNED.splitlines()[0]}"),
        (WARNED, 3, f", its last line: {WARNED.splitlines()[0]}"),
        (f"{SURVIVED}batch 7 again", -9, ", its last line: batch 7 again"),
        (f"{RETRIED}on port 29501", -9, ", its last line: on port 29501"),
        # what may be why it was killed, or was the last that it had to say
        (SURVIVED + BAR, -9, ": KeyError: 7 (program: an error in its code)"),
        (f"{FULL}step 8", -9, f": {FULL.strip()} (capacity: no space left on a disk)"),
        (f"{RETRIED}bye", 1, f": {RETRIED.strip()} (transient: something is in use)"),
        (f"{SURVIVED}run summary: 7 steps", 1, ": KeyError: 7 (program: an error in its code)"),
        (f"{SURVIVED}frame #0: abort", -6, ": KeyError: 7 (program: an error in its code)"),
    ],
)
def test_a_line_that_does_not_say_why_is_not_given_as_the_reason(text: str, exit_code: int, what: str) -> None:
    sentence = wording.failure(why(end(text, exit_code=exit_code)))
    assert sentence.partition(" after 12 min 4 s")[2] == what


def test_a_rank_that_had_noticed_another_and_was_then_killed_was_not_first() -> None:
    noticed = end(raised(0, f"RuntimeError: {GLOO}") + "\nrun summary: 7 steps", exit_code=-9)
    assert why(noticed, end(host="node3", exit_code=3, ended_s=T0 + 1)).host == "node3"


def test_a_crash_of_a_rank_below_torchrun_is_quoted() -> None:
    crash = "terminate called without an active exception\n"
    failure = why(end(torchrun(crash, 2, -6)))
    assert (
        wording.failure(failure)
        == f"rank 2 on node2 was killed by SIGABRT after 12 min 4 s: {crash.strip()} (program: C++ ended it)"
    )


MESH = f"""
Traceback (most recent call last):
  File "/home/me/train.py", line 6, in <module>
    dist.init_process_group("gloo")
RuntimeError: Gloo connectFullMesh failed with {GLOO}
"""


@pytest.mark.parametrize(
    ("unmarked", "exit_code", "quoted"),
    [
        (MESH, 1, True),
        (MESH, 3, False),
        (MESH, -9, False),
        (f"[E] Gloo connectFullMesh failed with {GLOO}\n", 1, False),
    ],
)
def test_a_rank_below_torchrun_that_found_no_peer_says_so(unmarked: str, exit_code: int, quoted: bool) -> None:
    failure = why(end(torchrun(unmarked, 3, exit_code)))
    assert (failure.rank, failure.quote.startswith("RuntimeError: Gloo connectFullMesh failed")) == (3, quoted)
    assert only_lost_its_peer(end(torchrun(unmarked, 3, exit_code))) == quoted


@pytest.mark.parametrize("mark", ["[rank3]: ", ""])
def test_an_error_that_a_rank_below_torchrun_survived_is_not_why_it_was_killed(mark: str) -> None:
    survived = "\n".join(f"{mark}{line}" for line in [*SURVIVED.splitlines(), "batch 7 again"])
    failure = why(end(torchrun(survived + "\n", 3, -9)))
    assert wording.failure(failure).endswith("was killed by SIGKILL after 12 min 4 s, its last line: batch 7 again")
    assert failure.rank == 3


def test_a_kill_for_want_of_memory_names_that_before_the_last_line() -> None:
    killed = why(end("saving step 7", exit_code=-9)).for_want_of_memory()
    assert wording.failure(killed).endswith("after 12 min 4 s (capacity: no memory left), its last line: saving step 7")


def test_output_that_is_cut_off_or_odd_is_read_too() -> None:
    whole = torchrun(raised(5, f"RuntimeError: {ECC}"), 5).splitlines()
    for cut in range(len(whole)):
        for lines in (tuple(whole[cut:]), tuple(whole[:cut])):
            complaints_of(lines)
            root_cause_of(lines)
            assert why(replace(end(), lines=lines)).host == "node2"


def test_a_program_that_was_killed_was_so_before_its_workers_whoever_was_noticed_first() -> None:
    program = end(host="node1", exit_code=-9, ended_s=T0 + 0.3)
    worker = replace(end(host="node2", exit_code=-9), is_worker=True)
    assert explain([worker, program], {}).host == "node1"
    noticed = end("ray.exceptions.ActorDiedError: The actor died unexpectedly", host="node1", ended_s=T0 + 0.3)
    assert explain([worker, noticed], {}).host == "node2"
    memory = replace(worker, lines=("Memory cgroup out of memory: Killed process 4211",))
    assert explain([memory, program], {}).host == "node2"
