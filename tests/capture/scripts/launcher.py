"""Starts two ranks as DeepSpeed's launcher does: knows nothing of tracelens, nor of torch.

``launcher.py SCRIPT ARGS``. As ``deepspeed.launcher.launch`` of DeepSpeed 0.19: the same Python with -u, a
copied environment with the ranks, ``--local_rank=N`` before the script's own arguments, no process
groups or sessions of their own; when a rank fails, or on SIGINT and SIGTERM, it ends all ranks with SIGTERM,
and with SIGKILL after 30 seconds. ``deepspeed`` itself starts it with -u -m and waits for it.
"""

import os
import signal
import socket
import subprocess
import sys
import time

if os.environ.get("LAUNCHER") is None:  # the outer one: deepspeed.launcher.runner
    inner = [sys.executable, "-u", __file__, *sys.argv[1:]]
    code = subprocess.Popen(inner, env={**os.environ, "LAUNCHER": "1"}).wait()
    sys.exit(code if code > 0 else 0)

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
environment = os.environ.copy()
environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_SIZE": "2"}
ranks = []
for rank in range(2):
    environment["RANK"] = environment["LOCAL_RANK"] = str(rank)
    command = [sys.executable, "-u", sys.argv[1], f"--local_rank={rank}", *sys.argv[2:]]
    ranks.append(subprocess.Popen(command, env=environment))
failed = None


def end_all(number, frame):
    for process in ranks:
        process.terminate()
    until = time.monotonic() + 30
    for process in ranks:
        try:
            process.wait(max(0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
    sys.exit(failed or 1)


signal.signal(signal.SIGINT, end_all)
signal.signal(signal.SIGTERM, end_all)
while any(process.poll() is None for process in ranks):
    for process in ranks:
        if process.poll():
            failed = process.returncode
            end_all(signal.SIGTERM, None)
    time.sleep(0.1)
for process in ranks:
    if process.returncode:
        failed = process.returncode
        end_all(signal.SIGTERM, None)
