"""Engines in processes of their own, on this machine or on others.

    client (the gateway's process)                         worker (a process of its own)

    WorkerEngine   checks calls, text, expected queue      server     requests, grammars, hashes
       |                                                      |
    WorkerRequests what each worker owes; replays          engine.runtime.core.EngineCore, as in one process
       |                                                      |
    Supervisor     starts, reads, watches, restarts  <---> frames over a Unix socket

A `ReplicaEngine` has several workers, each with its `WorkerRequests`, behind a `RemoteLink` in place of a supervisor.
Its `Fleet` states the addresses (`sources`: static, by DNS, or a file), and its `Membership` connects to new workers
and disconnects removed ones. A worker has several clients by a `WorkerListener`, on TCP or a Unix socket, that of a
supervisor included. A `ReplicaSet` chooses among the workers, and moves the requests of a lost one:

    replica_choice     the policies, as functions of views of the replicas
    prefix_index       the client's knowledge of their prefix caches
    prefix_events, prefix_publishers
                       a worker's messages about the blocks that it holds
    probe              what one worker serves, by one connection
    replica_health, retry_budget
                       replicas that are silent or stand still; the bound on requests that are computed again

The text of an answer, its stop strings and its output buffer stay on the client's side. A request whose worker ends is
therefore submitted again with the tokens that it has so far, and its stream does not notice: noise is a hash of seed,
position and token id, so the answer has the same tokens.
"""
