"""`turnpike up`: workers that Ray places, starts, restarts and scales.

    up            the loop: reads `cluster_file`, keeps the fleet file, follows the load (`load`)
      |              supervision: which workers there are, and which should be started and ended
      |              scaling: how many workers a group needs
      |  orders, reports (`orders`), over pipes (`driver_process`)
    ray_driver    a process of its own, since Ray ends its client where a head is lost: a placement group and an actor
      |              (`ray_actor`) for each worker
    worker_process   in the actor, on the worker's machine: starts `turnpike worker`, finds it again, ends it

Gateways read the fleet file (`file://` in `[replicas]`), and talk to the workers themselves: no token passes through
Ray. A worker is in a session of its own, so it survives its actor, Ray and `turnpike up`; it ends by itself when it has
had no client for the time of its lease.
"""
