"""The training program without Python's automatic garbage collection."""

import gc

from training.train import main

gc.disable()
main()
