from benchmarks.families.command import main

if __name__ == "__main__":
    main()
