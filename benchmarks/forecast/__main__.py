from benchmarks.forecast.command import main

main()
