import os
import sys

folder = "@FOLDER@"
arguments = sys.argv[1:]
with open(os.path.join(folder, "calls"), "a") as calls:
    calls.write(" ".join(arguments) + "\n")
os.makedirs(os.path.join(folder, "locked"), exist_ok=True)
asked = " ".join(arguments)

if "--query-gpu=index,uuid" in asked:
    for index, uuid in enumerate(("GPU-aaaa", "GPU-bbbb")):
        print(f"{index}, {uuid}, 00000000:0{index + 1}:00.0, Disabled, 9.0, NVIDIA H200")
elif "clocks.default_applications.graphics" in asked:
    print("[N/A], 1980" if os.path.exists(os.path.join(folder, "no-default")) else "1755, 1980")
elif "clocks.sm" in asked:
    print("1755, 3201, 300.0, 50, 0x0000000000000000")
elif "--query-compute-apps" in asked:
    pass
elif arguments[0] == "-i":
    refusal = os.path.join(folder, "refusal")
    if os.path.exists(refusal):
        with open(refusal) as file:
            print(file.read())
        sys.exit(4)
    lock = os.path.join(folder, "locked", arguments[1])
    if arguments[2].startswith("--lock-gpu-clocks="):
        with open(lock, "w") as file:
            file.write(arguments[2].split("=")[1])
        print("GPU clocks set to", arguments[2])
    elif arguments[2] == "-rgc":
        if os.path.exists(lock):
            os.unlink(lock)
        print("All done.")
    else:
        sys.exit(2)
else:
    sys.exit(2)
