"""The services as `.proto` files, and the modules that protoc makes of them: `python -m tests.support.protos`."""
