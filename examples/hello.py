"""The first program: one topic, two subscribers, three records.

Subscribe first, then publish. Both subscribers see everything, each at its own pace: they are two
positions on one log.

Prints::

    ada hears: hello
    ada hears: how are you?
    ada hears: goodbye
    grace hears: hello
    grace hears: how are you?
    grace hears: goodbye
"""

import asyncio

import runnel


async def listen(who: str, chat: runnel.Subscription[bytes]) -> None:
    async for record in chat:
        print(f"{who} hears: {record.value.decode()}")
        if record.value == b"goodbye":
            return


async def main() -> None:
    async with runnel.open() as broker:
        async with broker.subscribe("chat") as for_ada, broker.subscribe("chat") as for_grace:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(listen("ada", for_ada))
                tasks.create_task(listen("grace", for_grace))
                for words in ("hello", "how are you?", "goodbye"):
                    await broker.publish("chat", words)


if __name__ == "__main__":
    asyncio.run(main())
