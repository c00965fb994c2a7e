"""`runnel reply`: answer requests with a value, or with what a command prints."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import shutil
import sys
from asyncio.subprocess import PIPE

import runnel
from runnel.cli.command import Commands, add_command, add_json, check_count
from runnel.cli.errors import FINE, USAGE, CommandError
from runnel.cli.opened import opened
from runnel.cli.output import escaped, line_of, of_record, print_line
from runnel.cli.server_address import add_server, location_of
from runnel.core.errors import InvalidOption, TooLarge
from runnel.core.pattern import check_pattern
from runnel.core.record import FAILURE, Record

EXAMPLE = """\
examples:
  runnel reply ping pong                                    every request gets the same reply
  runnel reply 'square' --command 'bc'                      the request is the standard input, the reply what it prints
  runnel reply 'thumbs.>' --command './thumb' --group thumbs --concurrency 4
                                                            requests are shared with the other members of the group

The command runs without a shell, once for each request, with RUNNEL_TOPIC and RUNNEL_KEY in its environment. If its
exit code is not 0, the requester gets RequestFailed with what it wrote to the error stream.
"""

NOT_RUN = 127  # the exit code of a shell for it
MAX_ERROR = 4096  # bytes of an error stream that go to the requester


def add_to(commands: Commands) -> None:
    """Make `runnel reply` known."""
    parser = add_command(commands, "reply", "answer requests with a value or a command", EXAMPLE, run)
    parser.add_argument("pattern", metavar="PATTERN", help="the topic or pattern of the requests")
    parser.add_argument("value", nargs="?", metavar="VALUE", help="the reply to every request")
    parser.add_argument("--command", dest="program", metavar="COMMAND", help="a command that makes the reply")
    parser.add_argument("--group", metavar="GROUP", help="share the requests with the members of this group")
    parser.add_argument("--concurrency", type=int, default=1, metavar="N", help="commands at a time (default: 1)")
    parser.add_argument("--count", type=int, metavar="N", help="stop after so many requests")
    add_server(parser)
    add_json(parser, "each request as a line")


def run(chosen: argparse.Namespace) -> int:
    """Answer requests until Ctrl-C, or until so many are answered."""
    check_pattern(chosen.pattern)
    check_count(chosen.count)
    if (chosen.value is None) == (chosen.program is None):
        raise CommandError("usage_error", "name a VALUE or a --command, one of them", USAGE)
    if chosen.concurrency < 1:
        raise InvalidOption("concurrency", chosen.concurrency, "expected 1 or more")
    if chosen.program is not None:
        _check_program(chosen.program)
    if chosen.count != 0:
        try:
            asyncio.run(_answer_all(chosen, location_of(chosen)))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None  # of one answer; the others were cancelled
    return FINE


def _check_program(command: str) -> None:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InvalidOption("command", command, str(error)) from None
    if not words or shutil.which(words[0]) is None:
        raise InvalidOption("command", command, "there is no such program; it runs without a shell: sh -c '…' has one")


async def _answer_all(chosen: argparse.Namespace, where: str) -> None:
    left = chosen.count
    room = asyncio.Semaphore(chosen.concurrency)
    options = {"group": chosen.group, "prefetch": chosen.concurrency} if chosen.group else {}
    async with opened(where, stays=True) as broker, broker.subscribe(chosen.pattern, **options) as requests:
        print(f"answering requests of {chosen.pattern!r}; Ctrl-C stops", file=sys.stderr)
        async with asyncio.TaskGroup() as answers:
            async for request in requests:
                await room.acquire()
                answer = answers.create_task(_answer(chosen, broker, request))
                answer.add_done_callback(lambda _: room.release())
                if left is not None:
                    left -= 1
                    if not left:
                        return


async def _answer(chosen: argparse.Namespace, broker: runnel.Broker, request: Record[bytes]) -> None:
    """Answer one request. Of a group, the request is acked once the reply is sent, whatever the reply says."""
    if request.reply_to is not None:
        if chosen.json:
            print_line(of_record(request))
            sys.stdout.flush()
        else:
            print(line_of(request), flush=True)
        if chosen.program is None:
            await broker.reply(request, os.fsencode(chosen.value))
        else:
            code, out, errors = await _run_command(chosen.program, request)
            failed = {FAILURE: "command_failed"} if code else None
            said = errors.decode(errors="replace").strip()[-MAX_ERROR:] or f"the command ended with exit code {code}"
            if code:
                print(f"runnel: {escaped(chosen.program)} ended with exit code {code}", file=sys.stderr)
            try:
                await broker.reply(request, said if code else out, headers=failed)
            except TooLarge as error:
                await broker.reply(request, str(error), headers={FAILURE: error.code})
    if chosen.group:
        await request.ack()  # type: ignore[attr-defined]


async def _run_command(command: str, request: Record[bytes]) -> tuple[int, bytes, bytes]:
    """The exit code of the command, and what it wrote."""
    facts = {"RUNNEL_TOPIC": request.topic, "RUNNEL_KEY": os.fsdecode(request.key or b"")}
    try:
        process = await asyncio.create_subprocess_exec(
            *shlex.split(command), stdin=PIPE, stdout=PIPE, stderr=PIPE, env=os.environ | facts
        )
    except (OSError, ValueError) as error:  # a NUL in the key, or the program was removed
        return NOT_RUN, b"", str(error).encode()
    out, errors = await process.communicate(request.value)
    assert process.returncode is not None, "it has ended"
    return process.returncode, out, errors
