"""The application with a fake engine and fake keys: in-process, and on a loopback port."""

from tests.support.gateway_fixtures import *  # noqa: F403
