"""Running steps on a GPU: what is known of a request stays on the device, and a step carries over what is new."""
