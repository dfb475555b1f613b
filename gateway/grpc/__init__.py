"""gRPC: the Open Inference Protocol for apps, and vLLM's engine protocol for routers. Needs the extra `grpc`.

protos           the `.proto` files, and the modules that protoc makes of them
addresses        where to listen, and with which certificates
grpc_server      a server with health and reflection; both services are served by one of these

The gateway's service, `inference.GRPCInferenceService`. A call is an HTTP/2 request, and is served as one: by the
middleware, the stages and the sinks of the HTTP endpoints, with messages in place of JSON.

inference_listener   the server in the gateway's process: methods, drain
inference_stream     ModelStreamInfer: many requests on one stream
call_context         metadata, deadline and caller of a call
asgi_call            one request as an ASGI application sees it
inference_app        the ASGI application: keys, then endpoints by path
infer_request        a ModelInferRequest to a `GenerationRequest`
infer_formatter      an answer to messages
tensors              tensors and parameters to values and back
statuses             HTTP statuses to gRPC's

A worker's service, `vllm.grpc.engine.VllmEngine`:

vllm_listener    the server of `turnpike worker --grpc`
vllm_service     the methods, over an `Engine`
vllm_params      prompts and sampling parameters
vllm_messages    deltas to messages
"""
