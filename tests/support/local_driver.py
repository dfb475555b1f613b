"""A driver of `turnpike up` without Ray: it runs the workers on this machine, by their ids, where orders want them."""

import sys
import threading
import time
from pathlib import Path

import msgspec

from gateway.cluster.orders import Orders, Reports, WorkerOrder, WorkerReport
from gateway.cluster.worker_process import WorkerProcess

NODE = "127.0.0.1"


def follow(order: WorkerOrder) -> WorkerReport:
    process = WorkerProcess(order.id, Path(order.work_dir))
    if order.stop:
        process.stop(order.stop_seconds)
        return WorkerReport(order.id, order.attempt, "ended", NODE)
    return process.ensure(order, NODE)


def main() -> None:
    last, ended = [Orders([])], threading.Event()

    def read() -> None:
        for line in sys.stdin.buffer:
            last[0] = msgspec.json.decode(line, type=Orders)
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    while not ended.is_set():
        print(msgspec.json.encode(Reports([follow(each) for each in last[0].workers])).decode(), flush=True)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
