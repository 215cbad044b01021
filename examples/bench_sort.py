"""Times a sort of random numbers. It knows nothing of farbench: it prints one JSON object and could be anyone's."""

import argparse
import heapq
import json
import random
import time


def by_sorted(numbers: list[float]) -> list[float]:
    """The sort that Python has."""
    return sorted(numbers)


def by_heap(numbers: list[float]) -> list[float]:
    """A heap, emptied from its top."""
    heap = list(numbers)
    heapq.heapify(heap)
    return [heapq.heappop(heap) for _ in range(len(heap))]


def main() -> None:
    """Parse the arguments, time the sort, print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=1000, help="how many numbers")
    parser.add_argument("--algorithm", choices=["sorted", "heap"], default="sorted")
    parser.add_argument("--repeat", type=int, default=20)
    args = parser.parse_args()

    source = random.Random(0)
    numbers = [source.random() for _ in range(args.n)]
    sort = {"sorted": by_sorted, "heap": by_heap}[args.algorithm]
    samples_us = []
    for _ in range(args.repeat):
        start = time.perf_counter()
        sort(numbers)
        samples_us.append((time.perf_counter() - start) * 1e6)
    median_us = sorted(samples_us)[len(samples_us) // 2]
    print(json.dumps({"median_us": median_us, "samples_us": samples_us, "items_per_us": args.n / median_us}))


if __name__ == "__main__":
    main()
