"""Ask over a topic and wait for the answer: when it comes, when no responder is there, when it takes too long.

Prints::

    no responder yet: no_responders
    12 squared is 144
    no answer in time: request_timeout
"""

import asyncio

import runnel


async def answer(broker: runnel.Broker, questions: runnel.Subscription[bytes]) -> None:
    async for question in questions:
        number = int(question.value)
        if number > 1_000:
            continue  # too hard; the requester will stop waiting
        await broker.reply(question, str(number**2))


async def main() -> None:
    async with runnel.open() as broker:
        try:
            await broker.request("square", "12")
        except runnel.NoResponders as error:
            print(f"no responder yet: {error.code}")

        async with broker.subscribe("square") as questions:
            responder = asyncio.create_task(answer(broker, questions))

            reply = await broker.request("square", "12")
            print(f"12 squared is {reply.value.decode()}")

            try:
                await broker.request("square", "123456", timeout=0.05)
            except runnel.RequestTimeout as error:
                print(f"no answer in time: {error.code}")
        await responder  # its loop ended with the block


if __name__ == "__main__":
    asyncio.run(main())
