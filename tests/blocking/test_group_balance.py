"""Members in threads: what the group takes back for another member is handed out once."""

from threading import Barrier, Thread

import runnel.blocking

JOBS = 2_000


def test_each_record_goes_to_one_thread_while_members_come_and_go() -> None:
    seen: list[list[int]] = [[] for _ in range(4)]
    with runnel.blocking.open() as broker:
        broker.topic("jobs").publish_many([str(number) for number in range(JOBS)])
        together = Barrier(len(seen))

        def work(mine: list[int]) -> None:
            together.wait()
            for _ in range(JOBS // 40):  # each comes, works a little and leaves, so that others are idle in between
                with broker.subscribe("jobs", group="work", start="earliest", prefetch=64) as deliveries:
                    for _ in range(10):
                        delivery = deliveries.receive()
                        mine.append(int(delivery.value))
                        delivery.ack()

        threads = [Thread(target=work, args=(mine,)) for mine in seen]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(number for mine in seen for number in mine) == list(range(JOBS))
