from benchmarks.matrix.command import main

main()
