"""Writes the golden losses that training_golden_test compares with: PyTorch on CPU, float32 and float64.

    python3 make_golden.py [NAME ...]   # needs torch; writes NAME_losses.json here, for all of CONFIGS without a name

Weights and batches are integer formulas, so that neither has to be stored. All arithmetic is modulo 2^32:
    h(x): x ^= x >> 16; x *= 0x7feb352d; x ^= x >> 15; x *= 0x846ca68b; x ^= x >> 16
    r(p, i) = (h((p + 1) * 0x9E3779B9 + i) >> 8) * 2^-23 - 1            exactly, in [-1, 1)
Parameter number p in the order of `parameters` below, element i in row-major order; matrices are [in, out]:
    biases 0.02 r; norm weights 1 + 0.1 r; linears into the residual 0.02 r; all other matrices 0.05 r (in float32)
Reversal, step s, row b: n = 1 + h(65537 s + 131 b + 7) % 16; symbol j = 4 + h(1000003 s + 1009 b + j + 77) % 32;
    BOS 0, symbols, SEP 1, symbols reversed, EOS 2, PAD 3; targets count from SEP up to the last symbol.
Images, step s, row b: byte i = h(3072 (batch s + b) + i + 11) % 256 in [3, 32, 32]; the target is
    h(7919 s + 104729 b + 5) % classes. They are normalized by CIFAR-10's channel means and deviations.
Pairs, step s, row b, position j: token = h(7919 s + 104729 b + 31 (j // 2) + 5) % vocab; the target is the next one.

Each file: config, torch (version), losses_fp32, losses_fp64 (before the update of each step), and of the float64 run
    parameters: {name: {before: [sum, sum of squares], after: the same once all steps are taken}}
Rotary turns pairs (i, i + D/2) of a head forward: (a cos - b sin, b cos + a sin), base 10000, positions from 0. The
PyTorch peers elsewhere turn backward (cos and -sin): from the same weights, another model.
"""
import json
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F

CONFIGS = {
    "seqrev": dict(layers=2, heads=4, dim=128, context=64, vocab=36, rotary=True, rms=True, tied=False, bias=False,
                   batch=60, steps=30, data="reverse", optimizer="sgd", lr=0.1, clamp=1.0),
    "char": dict(layers=4, heads=4, dim=128, context=64, vocab=65, rotary=False, rms=False, tied=True, bias=False,
                 batch=12, steps=30, data="pairs", optimizer="adamw", lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1,
                 clip_norm=1.0),
    "bias": dict(layers=2, heads=2, dim=64, context=32, vocab=50, rotary=False, rms=False, tied=False, bias=True,
                 batch=4, steps=10, data="pairs", optimizer="sgd", lr=0.05, clamp=0.0),
    "vit_rms": dict(family="vit", layers=2, heads=4, dim=64, image=32, patch=4, classes=10, class_tokens=16, rms=True,
                    qkv_bias=False, batch=8, steps=30, optimizer="adamw", lr=3e-4, betas=(0.9, 0.999),
                    weight_decay=0.0),
    "vit_layer": dict(family="vit", layers=2, heads=2, dim=48, image=32, patch=8, classes=10, class_tokens=1,
                      rms=False, qkv_bias=True, batch=4, steps=10, optimizer="sgd", lr=0.05, clamp=0.0),
}
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def h(x):
    x = np.asarray(x, dtype=np.uint64) & 0xFFFFFFFF
    x ^= x >> np.uint64(16)
    x = (x * np.uint64(0x7FEB352D)) & np.uint64(0xFFFFFFFF)
    x ^= x >> np.uint64(15)
    x = (x * np.uint64(0x846CA68B)) & np.uint64(0xFFFFFFFF)
    return x ^ (x >> np.uint64(16))


def r(tensor, count):
    u = h((tensor + 1) * 0x9E3779B9 % 2**32 + np.arange(count, dtype=np.uint64))
    return ((u >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)).astype(np.float32)


def parameters(c):
    """(name, shape) in the family's order."""
    d, out = c["dim"], [] if c.get("family") == "vit" else [("wte", (c["vocab"], c["dim"]))]

    def add(name, shape, bias_shape, has_bias):
        out.append((name, shape))
        if has_bias:
            out.append((name.removesuffix(".weight") + ".bias", bias_shape))

    vit = c.get("family") == "vit"
    has_bias, qkv_bias = vit or c["bias"], c["qkv_bias"] if vit else c["bias"]
    norm_bias = has_bias and not c["rms"]
    if vit:
        features, tokens = 3 * c["patch"] ** 2, c["class_tokens"] + (c["image"] // c["patch"]) ** 2
        add("embed", (features, d), (d,), True)
        out += [("class_tokens", (c["class_tokens"], d)), ("positions", (tokens, d))]
    elif not c["rotary"]:
        out.append(("wpe", (c["context"], d)))
    for i in range(c["layers"]):
        add(f"h.{i}.norm1.weight", (d,), (d,), norm_bias)
        add(f"h.{i}.attn.qkv", (d, 3 * d), (3 * d,), qkv_bias)
        add(f"h.{i}.attn.proj", (d, d), (d,), has_bias)
        add(f"h.{i}.norm2.weight", (d,), (d,), norm_bias)
        add(f"h.{i}.mlp.up", (d, 4 * d), (4 * d,), has_bias)
        add(f"h.{i}.mlp.down", (4 * d, d), (d,), has_bias)
    add("norm.weight", (d,), (d,), norm_bias)
    if vit:
        add("head", (d, c["classes"]), (c["classes"],), True)
    elif not c["tied"]:
        out.append(("head", (d, c["vocab"])))
    return out


def weights(c, dtype):
    made = {}
    for number, (name, shape) in enumerate(parameters(c)):
        values = r(number, int(np.prod(shape)))
        if name.endswith(".bias"):
            values = np.float32(0.02) * values
        elif len(shape) == 1:
            values = np.float32(1) + np.float32(0.1) * values
        else:
            into_residual = name.endswith(("attn.proj", "mlp.down"))
            values = np.float32(0.02 if into_residual else 0.05) * values
        made[name] = torch.tensor(values.reshape(shape)).to(dtype).requires_grad_()
    return made


def rotate(x):
    """[B, H, T, D]: pairs (i, i + D/2) turn by position * 10000^(-2i/D)."""
    half = x.shape[-1] // 2
    freq = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.outer(torch.arange(x.shape[2], dtype=torch.float64), freq)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def attention(q, k, v, causal):
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    return torch.softmax(scores, -1) @ v


def norm(c, w, x, name):
    rms_eps, layer_eps = (1e-8, 1e-6) if c.get("family") == "vit" else (1e-6, 1e-5)
    if c["rms"]:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + rms_eps) * w[name + ".weight"]
    return F.layer_norm(x, (c["dim"],), w[name + ".weight"], w.get(name + ".bias"), layer_eps)


def linear(w, x, name):
    y = x @ w[name]
    return y + w[name + ".bias"] if name + ".bias" in w else y


def blocks(c, w, x, causal):
    heads, width = c["heads"], c["dim"] // c["heads"]
    for i in range(c["layers"]):
        qkv = linear(w, norm(c, w, x, f"h.{i}.norm1"), f"h.{i}.attn.qkv")
        q, k, v = (part.transpose(1, 2) for part in qkv.view(*x.shape[:2], 3, heads, width).unbind(2))
        if c.get("rotary"):
            q, k = rotate(q), rotate(k)
        x = x + linear(w, attention(q, k, v, causal).transpose(1, 2).reshape(x.shape), f"h.{i}.attn.proj")
        hidden = F.gelu(linear(w, norm(c, w, x, f"h.{i}.norm2"), f"h.{i}.mlp.up"), approximate="tanh")
        x = x + linear(w, hidden, f"h.{i}.mlp.down")
    return x


def logits(c, w, tokens):
    x = w["wte"][tokens]
    if not c["rotary"]:
        x = x + w["wpe"]
    x = norm(c, w, blocks(c, w, x, True), "norm")
    return x @ (w["wte"].T if c["tied"] else w["head"])


def vit_logits(c, w, images):
    batch, p, dtype = images.shape[0], c["patch"], w["embed"].dtype
    side = c["image"] // p
    scale, shift = (torch.tensor(v, dtype=dtype).view(1, 3, 1, 1) for v in
                    ([1 / (255 * d) for d in DEVIATION], [m / d for m, d in zip(MEAN, DEVIATION)]))
    x = (images.to(dtype) * scale - shift).view(batch, 3, side, p, side, p)
    x = linear(w, x.permute(0, 2, 4, 3, 5, 1).reshape(batch, side * side, -1), "embed")
    x = torch.cat([w["class_tokens"].expand(batch, -1, -1), x], 1) + w["positions"]
    return linear(w, norm(c, w, blocks(c, w, x, False)[:, : c["class_tokens"]].mean(1), "norm"), "head")


def images_batch(c, step):
    row = np.arange(c["batch"], dtype=np.uint64)
    byte = h((step * c["batch"] + row[:, None]) * np.uint64(3072) + np.arange(3072, dtype=np.uint64) + np.uint64(11))
    targets = h(step * 7919 + row * np.uint64(104729) + np.uint64(5)) % np.uint64(c["classes"])
    return (torch.tensor((byte % np.uint64(256)).astype(np.uint8).reshape(-1, 3, 32, 32)),
            torch.tensor(targets.astype(np.int64)))


def reverse_batch(c, step):
    length = c["context"]
    tokens = np.full((c["batch"], length), 3, np.int64)
    targets = np.full((c["batch"], length), -100, np.int64)
    for row in range(c["batch"]):
        n = 1 + int(h(step * 65537 + row * 131 + 7)) % 16
        symbols = [4 + int(h(step * 1000003 + row * 1009 + j + 77)) % 32 for j in range(n)]
        line = [0, *symbols, 1, *symbols[::-1], 2]
        tokens[row, :len(line)] = line
        targets[row, n + 1:2 * n + 2] = tokens[row, n + 2:2 * n + 3]
    return torch.tensor(tokens), torch.tensor(targets)


def pairs_batch(c, step):
    row = np.arange(c["batch"], dtype=np.uint64)[:, None]
    pair = (np.arange(c["context"] + 1, dtype=np.uint64) // np.uint64(2))[None, :]
    all_tokens = h(step * 7919 + row * np.uint64(104729) + pair * np.uint64(31) + np.uint64(5)) % np.uint64(c["vocab"])
    all_tokens = torch.tensor(all_tokens.astype(np.int64))
    return all_tokens[:, :-1], all_tokens[:, 1:]


def optimizer(c, w):
    matrices = [p for p in w.values() if p.dim() == 2]
    vectors = [p for p in w.values() if p.dim() != 2]
    if c["optimizer"] == "sgd":
        return torch.optim.SGD([*matrices, *vectors], lr=c["lr"])
    return torch.optim.AdamW([{"params": matrices, "weight_decay": c["weight_decay"]},
                              {"params": vectors, "weight_decay": 0.0}], lr=c["lr"], betas=c["betas"], eps=1e-8)


def moments(w):
    """{name: [sum, sum of squares]}"""
    return {name: [p.detach().double().sum().item(), p.detach().double().square().sum().item()]
            for name, p in w.items()}


def train(c, dtype):
    """The losses, and the parameters' moments before and after."""
    w = weights(c, dtype)
    before = moments(w)
    opt = optimizer(c, w)
    losses = []
    for step in range(c["steps"]):
        if c.get("family") == "vit":
            images, targets = images_batch(c, step)
            loss = F.cross_entropy(vit_logits(c, w, images), targets)
        else:
            tokens, targets = (reverse_batch if c["data"] == "reverse" else pairs_batch)(c, step)
            loss = F.cross_entropy(logits(c, w, tokens).flatten(0, 1), targets.flatten(), ignore_index=-100)
        opt.zero_grad()
        loss.backward()
        if c.get("clip_norm"):
            torch.nn.utils.clip_grad_norm_(w.values(), c["clip_norm"])
        if c.get("clamp"):
            torch.nn.utils.clip_grad_value_(w.values(), c["clamp"])
        opt.step()
        losses.append(loss.item())
    after = moments(w)
    return losses, {name: dict(before=before[name], after=after[name]) for name in w}


def main():
    torch.manual_seed(0)
    folder = os.path.dirname(os.path.abspath(__file__))
    for name in sys.argv[1:] or CONFIGS:
        config = CONFIGS[name]
        losses_fp32, _ = train(config, torch.float32)
        losses_fp64, parameters_fp64 = train(config, torch.float64)
        golden = dict(config=config, torch=torch.__version__, losses_fp32=losses_fp32, losses_fp64=losses_fp64,
                      parameters=parameters_fp64)
        worst = max(abs(a / b - 1) for a, b in zip(golden["losses_fp32"], golden["losses_fp64"]))
        print(f"{name}: first {golden['losses_fp32'][0]:.6f} last {golden['losses_fp32'][-1]:.6f}, float32 from "
              f"float64 at most {worst:.1e} apart")
        with open(os.path.join(folder, name + "_losses.json"), "w", encoding="utf-8") as file:
            json.dump(golden, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
