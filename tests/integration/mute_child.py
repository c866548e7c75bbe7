"""A parser process that never says that it is ready."""

import time

time.sleep(60)
