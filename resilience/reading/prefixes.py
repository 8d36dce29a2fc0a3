"""What launchers, loggers and progress bars put before a line of a program's output. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

# Of a longer line only both ends are read: what is looked for stands there, and some patterns are slow.
MAX_LINE = 4096
# Colours, titles and whatever else steers a terminal.
ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colors, and movements of the cursor
    r"|\x1b[]PX^_][^\x07\x1b\r\n]*(?:\x07|\x1b\\)"  # titles, links
    r"|\x1b[ -/]*[0-~]"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"  # other control characters, and what is left of a sequence that was cut
)
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]")
# Who wrote a line. Behind it Python's lines are indented by an even number of spaces: an odd one is the prefix's.
_WHO = re.compile(
    r"""(?:
    \[rank(?:(?P<rank>\d+)\]:|:\ \d+\]) | \[default\d+\]:           # PyTorch, Lightning, torchrun --tee
    | \[(?:\d+,)?(?P<mpi>\d+)\]<std(?:err|out)>: | \[\d+\](?=\ )    # mpirun --tag-output, horovodrun; Hydra
    | \d{1,6}:(?=\ )                                                # srun --label
    | \d+(?:\.\d+){3}:(?=\ )                                        # pdsh: an address, or a name with a number
    | (?!python|\S+\.(?:\w{1,3}|\w*(?:Error|Exception)):)[a-z][a-z_.-]*\d[\w.-]*:(?=\ )
    | \([\w.<>=-]+(?:\ [\w=.]+)*(?:,\ [^()]*)?\)(?=\s|$)            # Ray, vLLM
    )(?:\ (?=(?:\ \ )*\S))?""",
    re.VERBOSE,
)
_TIME = r"\d\d:\d\d:\d\d(?:[.,:]\d+)?"
_DAY = r"(?:\d{4}[-/]\d\d[-/]\d\d[ T_]|\d\d/\d\d/\d\d\ |(?:[A-Z][a-z]{2}\ )?[A-Z][a-z]{2}\ [ \d]\d\ )"
_LEVEL = r"(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL|SEVERE)"
# When, how important, and by which line of code: one space ends it, since what follows may be indented.
_WHEN = re.compile(
    rf"""
    \[?{_DAY}{_TIME}(?:Z|\ ?[+-]\d\d:?\d\d|\ UTC|\ \d{{4}}|\ [DIWEF]\ \d+\ \d+)?\]?:?(?:\s|$|(?=\[))  # ISO, ctime, Ray
    | \[?[DIWEF](?:\d{{3,4}}\ (?:{_TIME}|00:00:\d+\.\d+)\ +(?:\d+\ )?|\ )\S+?:\d+\]\    # glog, absl, TensorFlow
    | (?:{_LEVEL}\ )?\[?\d\d[-/]\d\d\ {_TIME}\ \[?[\w./:-]+\]:?\    # vLLM, detectron2
    | \[{_LEVEL}\]\ (?:\[[^\]]*\]\ )?                               # DeepSpeed behind the time
    | (?:[|-]\ )?(?:[\w.]+\ -\ )?{_LEVEL}\ *[|-]\ (?:[^|]*?\ [|-]\ )?    # logging and loguru behind the time
    | {_LEVEL}:[\w.]+: | {_LEVEL}\ [A-Z]\w+:\                       # basicConfig, Spark
    | std(?:out|err)\ [FP]\ | \[[\w.-]+:\d+\]\ | \S+\ [\w.-]+\[\d+\]:\  # containerd, Open MPI, syslog behind the time
    """,
    re.VERBOSE,
)
# A progress bar as tqdm draws it, with a total or without: what comes next is on the same line.
_BAR = re.compile(r"^.*?(?:\d+%\|[^|]*\| *\S+|\b\d[\d.]*\w*) \[\d+:\d\d(?::\d\d)?[<,][^\]]*\]")
# What Python puts before the lines of an ExceptionGroup.
_MARGIN = re.compile(r"^ +\| ?")
# What a program tells while all is well: it keeps its prefix, so that it can be told from the rest.
_CHATTER = re.compile(
    r"""(?!INFO: task)[^"'(=]{0,60}?\b(?:INFO|DEBUG|TRACE)\b|\[?[DI](?:\d{3,4} \S+ +(?:\d+ )?| )\S+:\d+\] """
)


def clean_line(line: str) -> str:
    """Return a line without colours, progress bars, the prefixes of launchers and loggers, and a group's margin."""
    return speaker_and_words(line)[1]


def is_chatter(line: str) -> bool:
    """Return whether a clean line was logged as nothing but information."""
    return _CHATTER.match(line) is not None


def speaker_and_words(line: str) -> tuple[str, str]:
    """Return who wrote a line, as its launcher marks it, and the clean line."""
    ends = line if len(line) <= MAX_LINE else line[: MAX_LINE // 2] + line[-MAX_LINE // 2 :]
    words = _ANSI.sub("", ends).rstrip()
    speakers = []
    for match, is_who in _prefixes(words):
        speakers += [match[0].strip()] if is_who else []
        words = words[match.end() :]
    return "".join(speakers), _MARGIN.sub("", words)


def rank_of(speaker: str) -> int | None:
    """Return the rank of who wrote a line, if the launcher's mark has it."""
    ranks = [match["rank"] or match["mpi"] for match in _WHO.finditer(speaker) if match["rank"] or match["mpi"]]
    return int(ranks[-1]) if ranks else None


def _prefixes(words: str) -> Iterator[tuple[re.Match[str], bool]]:
    """Yield the prefixes of a line, each matched on what the one before has left, and whether it says who."""
    while True:
        who = _WHO.match(words)
        match = who or _BAR.match(words) or _WHEN.match(words)
        if match is None or (who is None and is_chatter(words)):
            return
        yield match, who is not None
        words = words[match.end() :]
