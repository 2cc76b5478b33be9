from benchmarks.reference.command import main

main()
