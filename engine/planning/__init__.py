"""Plans capacity: the real scheduler, cache, admission and choice of replica in virtual time, with a model of step
times. No torch.

    origin          where a number comes from: stated, computed, measured, fitted or assumed
    hardware        devices by name, from data sheets
    model_sums      bytes and operations of a model, from its config; placement gives its KV memory on a device
    hand_sums       the arithmetic of a deployment step by step, with continuous over static batching
    step_features   the work of a step as the fitted model sees it; step_times predicts its time
    fitting         fits step times to recorded steps by non-negative least squares; fit_file stores a fit
    traffic         requests by hour: described streams; trace has recorded requests
    hours           which hours of a day are played, and for which others each stands
    deployment      replicas as they are simulated; outcome is what a window of traffic gets from them
    targets         bounds by class, and which of them an outcome misses
    search          the smallest number of replicas that meets the targets, and the load at which one is missed
    runs            runs simulations in several processes
    plan            a whole plan: fleet, day, costs and knee
"""
