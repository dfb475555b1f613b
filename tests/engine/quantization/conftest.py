from tests.engine.models.conftest import tiny_folder

__all__ = ["tiny_folder"]
