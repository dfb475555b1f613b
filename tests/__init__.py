import sys

# A failed assertion of a helper says what was compared, as one of a test does.
if "pytest" in sys.modules:
    sys.modules["pytest"].register_assert_rewrite("tests.support")
