"use strict";
// The search, the picker and the comparison. All data is text: nothing is ever read as HTML.
(() => {
  const at = (id) => document.getElementById(id);
  const data = (id) => (at(id) ? JSON.parse(at(id).textContent) : null);
  const texts = data("texts");
  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
  const say = (name, values = {}) => fill(texts[name], values);
  const make = (name, children = [], attributes = {}) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...[children].flat());
    return element;
  };
  const link = (tag) => make("a", tag, { href: `tags/${tag}.html` });
  const size = (bytes) => {
    for (const unit of ["B", "kB", "MB", "GB"]) {
      if (bytes < 1000 || unit === "GB") return `${unit === "B" ? bytes : bytes.toFixed(1)} ${unit}`;
      bytes /= 1000;
    }
  };

  // The fields of a page are in the address, so that it can be sent to somebody.
  const remembered = () => new URLSearchParams(location.hash.slice(1));
  const remember = (values) => {
    const given = Object.entries(values).filter(([, value]) => value);
    if (given.length || location.hash.includes("=")) history.replaceState(null, "", `#${new URLSearchParams(given)}`);
  };

  function search() {
    const box = at("search");
    const table = data("packed");
    const rows = [...document.querySelectorAll("tr[data-tag]")];
    const packages = table.packages.map(([, name, version]) => `${name} ${version}`);
    const lower = packages.map((text) => text.toLowerCase());
    const positions = new Map(table.images.map((image) => [image.tag, image.packages]));
    const show = () => {
      // "numpy 2.4" and "numpy==2.4" are one word: a name and its version
      const query = box.value.toLowerCase().replace(/==/g, " ");
      const words = query.match(/[a-z_][^\s]*\s+v?\d\S*|\S+/g)?.map((word) => word.replace(/\s+/, " ")) ?? [];
      let count = 0;
      for (const row of rows) {
        const missing = words.filter((word) => !row.dataset.words.includes(word));
        const found = missing.map((word) => {
          // a version without a name is that of torch or CUDA, not that of any package
          if (/^v?\d/.test(word)) return [];
          return positions.get(row.dataset.tag).filter((one) => lower[one].includes(word));
        });
        row.hidden = found.some((some) => !some.length);
        count += row.hidden ? 0 : 1;
        const names = [...new Set(found.flat())].map((one) => packages[one]);
        row.querySelector(".match").textContent = names.slice(0, 4).join(say("comma")) + (names.length > 4 ? " …" : "");
      }
      at("found").textContent = !words.length ? "" : count ? say("found", { count, all: rows.length }) : say("found_none");
      remember({ q: box.value });
    };
    box.value = remembered().get("q") ?? "";
    box.addEventListener("input", show);
    document.addEventListener("keydown", (event) => {
      if (event.key === "/" && document.activeElement !== box && !event.ctrlKey && !event.metaKey) {
        event.preventDefault();
        box.focus();
      } else if (event.key === "Escape" && document.activeElement === box && box.value) {
        event.preventDefault();
        box.value = "";
        show();
      }
    });
    box.closest(".search").hidden = false;
    show();
  }

  // --- the picker: the rules of torchkiln/matrix/pick.py ------------------------------------------

  const numbers = (version) => version.split(".").map(Number);
  const order = (a, b) => {
    for (let place = 0; place < Math.min(a.length, b.length); place++) if (a[place] !== b[place]) return a[place] - b[place];
    return a.length - b.length;
  };
  const reaches = (driver, version) => {
    if (driver.includes(".")) return order(numbers(driver), numbers(version)) >= 0 ? "yes" : "no";
    const [mine, other] = [numbers(driver)[0], numbers(version)[0]];
    return mine === other ? "from" : mine > other ? "yes" : "no";
  };

  function pick(table, driver, gpu, torch) {
    const kind = gpu?.name === gpu?.capability ? "gpu-of-capability" : "gpu";
    const called = gpu && fill(table.sentences[kind], { gpu: gpu.name, capability: gpu.capability });
    const sentence = (name, values) => fill(table.sentences[name], { ...values, driver, gpu: called });
    const branch = numbers(driver)[0];
    const host = [];
    if (gpu?.refused) host.push(fill(table.sentences[gpu.refused], { gpu: gpu.name, machine: table.machine }));
    if (gpu?.first && branch < gpu.first) host.push(sentence("too-early", { branch: gpu.first }));
    if (gpu?.last && branch > gpu.last) host.push(sentence("too-late", { branch: gpu.last }));
    const judged = table.images.filter((image) => !torch || image.torch === torch).map((image) => {
      const [obstacles, conditions] = [[], []];
      const [atMinimum, atFull] = [reaches(driver, image.minimum), reaches(driver, image.full)];
      if (atMinimum === "no") obstacles.push(sentence("below-minimum", { minimum: image.minimum, cuda: image.major }));
      if (atMinimum === "from") conditions.push(sentence("part-of-branch", image));
      if (atMinimum !== "no" && atFull === "no") conditions.push(sentence("compatibility", image));
      const code = gpu && gpu.refused !== "jetson" ? image.code[gpu.capability] : "";
      if (code === "cut") obstacles.push(sentence("not-kept", image));
      if (code === "none") obstacles.push(sentence("no-code", image));
      if (code === "ptx" && atFull === "no") obstacles.push(sentence("ptx-driver", image));
      if (code === "ptx" && atFull !== "no") conditions.push(sentence("ptx", image));
      if (image.kept) conditions.push(sentence("kept", image));
      if (!image.default_index) conditions.push(sentence("other-index", image));
      const rank = [image.torch_rank, +image.default_index, +(atFull !== "no"), image.cuda_rank, +image.runtime, +!image.kept];
      return { tag: image.tag, torch: image.torch_rank, obstacles, conditions, rank };
    });
    return {
      host,
      runs: judged.filter((one) => !one.obstacles.length && !host.length).sort((a, b) => order(b.rank, a.rank)),
      fails: judged.filter((one) => one.obstacles.length || host.length).sort((a, b) => b.torch - a.torch),
    };
  }

  function picker() {
    const table = data("pick-data");
    const [driver, gpu, torch] = ["driver", "gpu", "torch"].map(at);
    const entry = ({ tag }, reasons) => [link(tag), ...(reasons.length ? [make("span", reasons.join(say("semicolon")), { class: "note" })] : [])];
    const first = (one) => {
      const why = one.conditions.length ? [] : [make("p", say("no_conditions"), { class: "help" })];
      return make("div", [...entry(one, one.conditions), ...why], { class: "best", "data-tag": one.tag });
    };
    const show = () => {
      const version = driver.value.trim().replace(/^R/, "").replace(/^r/, "");
      const valid = /^[0-9]{3}(\.[0-9]+){0,2}$/.test(version);
      driver.setAttribute("aria-invalid", String(Boolean(driver.value) && !valid));
      remember({ driver: driver.value, gpu: gpu.value, torch: torch.value });
      if (!valid) {
        at("picked").replaceChildren(...(driver.value ? [make("p", say("not_a_driver"))] : []));
        return;
      }
      const found = pick(table, version, table.gpus.find((one) => one.name === gpu.value), torch.value);
      const [best, ...others] = found.runs;
      const items = found.fails.map((one) => make("li", entry(one, one.obstacles), { "data-tag": one.tag }));
      at("picked").replaceChildren(
        make("h2", best ? say("runs", { count: found.runs.length }) : say("runs_none")),
        ...found.host.map((reason) => make("p", reason, { class: "host" })),
        ...(best ? [make("p", say("pick_order"), { class: "help" }), first(best)] : []),
        make("ol", others.map((one) => make("li", entry(one, one.conditions), { "data-tag": one.tag })), { class: "runs", start: 2 }),
        ...(items.length && !found.host.length
          ? [make("details", [make("summary", say("fails", { count: items.length })), make("ul", items, { class: "fails" })])]
          : []),
      );
    };
    for (const field of [driver, gpu, torch]) {
      field.value = remembered().get(field.id) ?? "";
      field.addEventListener("input", show);
    }
    at("pick").addEventListener("submit", (event) => event.preventDefault());
    at("pick").hidden = false;
    show();
  }

  // --- the comparison -----------------------------------------------------------------------------

  function compare(table, a, b) {
    const packages = (image) => new Map(image.packages.map((at) => table.packages[at]).map((one) => [`${one[0]} ${one[1]}`, one]));
    const [left, right] = [packages(a), packages(b)];
    const [changed, swapped] = [[], []];
    for (const key of new Set([...left.keys(), ...right.keys()])) {
      const [one, other] = [left.get(key), right.get(key)];
      const [system, name] = one ?? other;
      if (one?.[2] !== other?.[2]) changed.push([system, name, one?.[2] ?? "", other?.[2] ?? ""]);
      else if (one[3] !== other[3]) swapped.push(`${name} ${one[2]}`);
    }
    const systems = ["python", "toolkit", "os"];
    const key = (row) => `${systems.indexOf(row[0])} ${row[1]}`;
    changed.sort((one, other) => (key(one) < key(other) ? -1 : 1));
    // a layer is its blob, whatever an image calls it; one that no build recorded is equal to no other
    const layers = (image) => image.layers.map((at) => table.layers[at]);
    const known = (image) => new Set(layers(image).map((layer) => layer[1]).filter(Boolean));
    const only = (image, other) => layers(image).filter((layer) => !known(other).has(layer[1]));
    const shared = layers(a).filter((layer) => known(b).has(layer[1]));
    return { changed, swapped: swapped.sort(), shared, onlyA: only(a, b), onlyB: only(b, a) };
  }

  function comparison() {
    const table = data("packed");
    const fields = ["a", "b"].map(at);
    const total = (layers) => {
      const sum = size(layers.reduce((bytes, layer) => bytes + (layer[2] ?? 0), 0));
      return layers.some((layer) => layer[2] === null) ? say("unknown_more", { size: sum }) : sum;
    };
    const list = (title, layers) => make("details", [
      make("summary", title),
      make("ul", layers.map((layer) => make("li", [make("span", layer[0], { lang: "en" }), layer[2] === null ? "" : say("colon") + size(layer[2])]))),
    ]);
    const show = () => {
      const [a, b] = fields.map((field) => table.images.find((image) => image.tag === field.value));
      const found = compare(table, a, b);
      const head = ["kind", "name"].map((name) => say(name)).concat(a.tag, b.tag);
      const rows = found.changed.map(([system, name, one, other]) => make("tr", [
        make("td", say(`kind_${system}`), { class: "kind" }), make("th", name, { scope: "row" }), make("td", one || "–"), make("td", other || "–"),
      ]));
      at("compared").replaceChildren(
        make("p", [link(a.tag), " · ", link(b.tag)]),
        make("h2", rows.length ? say("changed_packages", { count: rows.length }) : say("compare_same")),
        ...(rows.length
          ? [make("table", [make("thead", make("tr", head.map((text, place) => make("th", text, { scope: "col", class: place ? "" : "kind" })))), make("tbody", rows)])]
          : []),
        ...(found.swapped.length
          ? [make("details", [make("summary", say("other_files", { count: found.swapped.length })), make("p", found.swapped.join(say("comma")))])]
          : []),
        make("h2", say("layers")),
        list(say("shared_layers", { count: found.shared.length, size: total(found.shared) }), found.shared),
        list(say("only_in", { count: found.onlyA.length, tag: a.tag, size: total(found.onlyA) }), found.onlyA),
        list(say("only_in", { count: found.onlyB.length, tag: b.tag, size: total(found.onlyB) }), found.onlyB),
      );
      remember({ a: a.tag, b: b.tag });
    };
    fields.forEach((field, place) => {
      const wanted = remembered().get(field.id);
      const first = table.images[Math.min(place, table.images.length - 1)].tag;
      field.value = table.images.some((image) => image.tag === wanted) ? wanted : first;
      field.addEventListener("input", show);
    });
    at("compare").addEventListener("submit", (event) => event.preventDefault());
    at("compare").hidden = false;
    show();
  }

  function copying() {
    for (const block of document.querySelectorAll(".command")) {
      const button = make("button", say("copy"), { type: "button", "aria-describedby": block.querySelector("p").id });
      button.addEventListener("click", async () => {
        try {
          await navigator.clipboard.writeText(block.querySelector("pre").textContent);
          button.textContent = say("copied");
        } catch {
          getSelection().selectAllChildren(block.querySelector("code")); // forbidden: the reader copies it
        }
      });
      block.append(button);
    }
  }

  // The page in the other language begins with the same fields.
  const language = document.querySelector(".language");
  language.addEventListener("click", () => {
    language.hash = location.hash.includes("=") ? location.hash : "";
  });

  for (const element of document.querySelectorAll(".without")) element.hidden = true;
  if (at("search")) search();
  if (at("pick")) picker();
  if (at("compare")) comparison();
  if (navigator.clipboard) copying();
})();
