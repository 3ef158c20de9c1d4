// The engine of simfed/net/engine.py with its sharing, flows and meter, in compiled form.
//
// It takes every step that the Python modules take, in their order, so that all numbers have the
// same bits; what the steps are for is said there. What differs: heaps drop what is void without a
// trace, and nothing here is an object of Python's. Flows are known outside by a handle.
//
// Compiled without contraction of a·b + c, which would change last bits.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <new>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace {

constexpr double INF = std::numeric_limits<double>::infinity();
constexpr double TIE = 1e-12;         // sharing._TIE
constexpr size_t LONG_PATH = 64;      // sharing._LONG_PATH
constexpr int64_t OWN_CAP = -1;       // maxmin.OWN_CAP
enum Order { FLOW_ENDS, LINK_ENDS, CAPACITY_CHANGES, FLOW_JOINS };

// What ends a call early; `what` is known to simfed/net/compiled.py.
enum Trouble { NO_MEMORY = -1, RAISED = -2, OVERFULL = -3, LATE = -4, UNDRAINED = -5 };
struct Stop {
  Trouble what;
  int64_t id;
  double a, b;
};

// Python's min and max of two: the first one where they are equal.
inline double least(double a, double b) { return b < a ? b : a; }
inline double most(double a, double b) { return b > a ? b : a; }

// math.fsum: the correctly rounded sum (Shewchuk 1997).
double fsum(const std::vector<double>& numbers) {
  static thread_local std::vector<double> partials;
  partials.clear();
  double infinite = 0.0;
  for (double x : numbers) {
    if (!std::isfinite(x)) {
      infinite += x;
      continue;
    }
    size_t kept = 0;
    for (double y : partials) {
      if (std::fabs(x) < std::fabs(y)) std::swap(x, y);
      const double high = x + y, low = y - (high - x);
      if (low != 0.0) partials[kept++] = low;
      x = high;
    }
    partials.resize(kept);
    if (x != 0.0) partials.push_back(x);
  }
  if (infinite != 0.0) return infinite;
  size_t n = partials.size();
  if (!n) return 0.0;
  double high = partials[--n], low = 0.0;
  while (n) {
    const double x = high, y = partials[--n];
    high = x + y;
    low = y - (high - x);
    if (low != 0.0) break;
  }
  // halfway cases are decided by the next partial's sign
  if (n && ((low < 0.0 && partials[n - 1] < 0.0) || (low > 0.0 && partials[n - 1] > 0.0))) {
    const double twice = low * 2.0, x = high + twice;
    if (twice == x - high) high = x;
  }
  return high;
}

struct Tally {
  int64_t count = 0;
  double total = 0.0, error = 0.0;

  double value() const { return total + error; }
  void add(double number) {
    ++count;
    shift(number);
  }
  void remove(double number) {
    if (--count)
      shift(-number);
    else
      total = error = 0.0;
  }
  void shift(double by) {
    const double sum = total + by;
    if (std::fabs(total) >= std::fabs(by))
      error += (total - sum) + by;
    else
      error += (by - sum) + total;
    total = sum;
  }
};

struct Link;

struct Crossing {  // a shared link of a flow's path, and the flow's place in its list
  Link* link;
  size_t place;
};

struct Dwelt {
  int64_t link;
  double seconds;
};

struct Cost {  // what a byte takes of an airtime
  int64_t link;
  double value;
};

struct Radio {  // a link whose capacity is one over the cost in its cell
  int64_t link, cell;
};

struct Flow {
  uint64_t serial = 0;  // 0: nobody's; an entry of a heap is void where it names another one
  int64_t handle = 0, id = 0, stamp = 0, cap_link = OWN_CAP;
  bool joined = false, programmed = false, changed = false;
  double size = 0, weight = 1, cap = INF, limit = INF, level_cap = INF;
  double remaining = 0, unsent = 0, end = INF, since = 0, spent = 0;
  Link* owner = nullptr;
  std::vector<int64_t> links;
  std::vector<Crossing> shared;
  std::vector<Dwelt> dwelt;
  std::vector<Cost> costs;
  std::vector<Radio> radios;

  double cost_on(int64_t link) const {
    const double* cost = air_cost(link);
    return cost ? *cost : 1.0;
  }
  const double* air_cost(int64_t link) const {
    for (const Cost& cost : costs)
      if (cost.link == link) return &cost.value;
    return nullptr;
  }
  void dwell(int64_t link, double seconds) {
    for (Dwelt& part : dwelt)
      if (part.link == link) {
        part.seconds += seconds;
        return;
      }
    dwelt.push_back({link, 0.0 + seconds});
  }
};

struct Entry {  // of a heap of flows, the least first
  double key;
  int64_t id;
  Flow* flow;
  uint64_t serial;
  bool operator<(const Entry& other) const {  // std's heaps have the greatest first
    return key != other.key ? key > other.key : id > other.id;
  }
};

struct Guard {
  double level;
  int64_t id, number;
  Link* watching;
  uint64_t serial;
  bool operator<(const Guard& other) const {
    if (level != other.level) return level > other.level;
    return id != other.id ? id > other.id : number > other.number;
  }
};

template <class T>
void push(std::vector<T>& heap, T entry) {
  heap.push_back(entry);
  std::push_heap(heap.begin(), heap.end());
}

template <class T>
void pop(std::vector<T>& heap) {
  std::pop_heap(heap.begin(), heap.end());
  heap.pop_back();
}

struct Load {
  Link* owner;
  Tally tally;
  double seen;  // the owner's clock when the meter last looked
  Tally sending = Tally();  // the meter's, of an airtime: the weights themselves
};

struct Link {
  uint64_t serial = 0;
  int64_t id = 0, guard = 0, stamp = 0, pushes = 0;
  bool dirty = false, changed = false;
  double capacity = 0, level = INF, progress = 0, since = 0, turned = 0;
  std::vector<Flow*> flows;  // in order of arrival; null: has left
  size_t crossed_by = 0;     // how many are there
  std::vector<Entry> ends, by_cap, by_limit;
  Tally load;
  std::vector<Load> loads;  // in order of arrival
  std::vector<Link*> watchers;
  std::vector<Guard> guards;
  std::unordered_map<uint64_t, double> guarded;  // by the other link's serial
  bool metered = false;                          // the meter has a piece of it
  double from = 0, load_from = 0, carried = 0;
  bool airtime = false;  // of a cell, whose bytes are counted besides
  double bytes = 0;
  Tally sending;  // the rates of its capped flows

  double progress_at(double now) const {
    if (level == INF || now <= since) return progress;
    return progress + level * (now - since);
  }
  void settle(double now) {
    progress = progress_at(now);
    since = now;
  }
  Load* find(const Link* owner) {
    for (Load& part : loads)
      if (part.owner == owner) return &part;
    return nullptr;
  }
  void watch(Link* link) {
    if (std::find(watchers.begin(), watchers.end(), link) == watchers.end())
      watchers.push_back(link);
  }
  void unwatch(Link* link) {
    auto found = std::find(watchers.begin(), watchers.end(), link);
    if (found != watchers.end()) {
      *found = watchers.back();
      watchers.pop_back();
    }
  }
  double slack() {
    const double left = (capacity - load.total) - load.error;
    if (loads.size() <= (find(this) ? 1u : 0u)) return left;
    static thread_local std::vector<double> parts;
    parts.assign(1, left);
    for (const Load& part : loads)
      if (part.owner != this) parts.push_back(-part.owner->level * part.tally.value());
    return fsum(parts);
  }
  // The first flow of a heap of which the entry still holds; void entries before it are dropped.
  template <class Holds>
  static Flow* first_of(std::vector<Entry>& heap, Holds holds) {
    while (!heap.empty()) {
      const Entry& first = heap.front();
      if (first.flow->serial == first.serial && holds(*first.flow, first.key)) return first.flow;
      pop(heap);
    }
    return nullptr;
  }
  Flow* next_end() {
    return first_of(ends, [this](const Flow& flow, double end) {
      return flow.owner == this && flow.end == end;
    });
  }
  Flow* lowest_cap() {
    return first_of(by_cap, [this](const Flow& flow, double cap) {
      return flow.owner == this && flow.level_cap == cap;
    });
  }
  Flow* fastest_capped() {
    return first_of(by_limit, [](const Flow& flow, double minus) {
      return !flow.owner && flow.level_cap == -minus;
    });
  }
  void collect() {  // the heaps anew, of what is not void
    ends.clear(), by_cap.clear(), by_limit.clear();
    for (Flow* flow : flows) {
      if (!flow) continue;
      if (flow->owner == this) {
        ends.push_back({flow->end, flow->id, flow, flow->serial});
        if (flow->level_cap < INF) by_cap.push_back({flow->level_cap, flow->id, flow, flow->serial});
      } else if (!flow->owner) {
        by_limit.push_back({-flow->level_cap, flow->id, flow, flow->serial});
      }
    }
    for (auto* heap : {&ends, &by_cap, &by_limit}) std::make_heap(heap->begin(), heap->end());
    std::make_heap(guards.begin(), guards.end());
  }
  void rebase() {
    for (Flow* flow : flows)
      if (flow && flow->owner == this) flow->end -= progress;
    turned += progress;
    progress = 0.0;
    guards.erase(std::remove_if(guards.begin(), guards.end(),
                                [](const Guard& entry) {
                                  return entry.watching->serial != entry.serial ||
                                         entry.watching->guard != entry.number;
                                }),
                 guards.end());
    collect();
    pushes = 0;
  }
};

struct Dirty {
  double level;
  int64_t id;
  Link* link;
  uint64_t serial;
  bool operator<(const Dirty& other) const {
    return level != other.level ? level > other.level : id > other.id;
  }
};

struct Event {
  double at;
  int32_t order;
  int64_t sequence;
  Flow* flow;  // or
  Link* link;  // or
  int64_t varying;
  uint64_t serial;
  int64_t stamp;
  bool operator<(const Event& other) const {
    if (at != other.at) return at > other.at;
    return order != other.order ? order > other.order : sequence > other.sequence;
  }
  bool is_void() const {
    if (flow) return flow->serial != serial || flow->stamp != stamp;
    if (link) return link->serial != serial || link->stamp != stamp;
    return false;
  }
};

struct Slot {  // who uses a link
  Flow* alone = nullptr;
  Link* shared = nullptr;
  double from = 0, left = 0;  // the meter's, of the flow that has it alone
};

// What is asked of Python; all but `solve` answer 0, or another number where something was raised.
using Burst = int (*)(int64_t handle, double spent, double unsent, double* answer);
using Asked = int (*)(int64_t number);
using Solve = int (*)(int64_t links, const double* capacities, int64_t flows, const int64_t* starts,
                      const int64_t* paths, const double* costs, const double* weights,
                      const double* limits, double* rates, int64_t* bottlenecks);

struct Engine {
  const double* capacities;
  bool metered;
  int64_t patience = 64, patience_per_link = 16;
  double now = 0.0;
  double next = INF;  // `next_at()` after every call
  double* said = nullptr;  // what is handed out lies here, too, if there is room for it
  int64_t room = 0;
  int64_t sequence = 0;
  uint64_t serials = 0;
  size_t shared_links = 0;
  std::deque<Flow> flows;
  std::vector<Flow*> idle_flows;
  std::deque<Link> links;
  std::vector<Link*> idle_links, dead_links;
  std::unordered_map<int64_t, Slot> slots;
  std::unordered_map<int64_t, double> changed_capacity;
  std::vector<Event> heap;
  std::vector<Dirty> dirty;
  std::vector<std::pair<Flow*, uint64_t>> changed_flows;
  std::vector<std::pair<Link*, uint64_t>> changed_links;
  std::vector<Flow*> ended;
  std::vector<double> uses, out;
  std::vector<int64_t> whole;
  std::vector<double> parts;
  Burst burst = nullptr;
  Asked before_join = nullptr, after_join = nullptr, change = nullptr;
  Solve solve_all_outside = nullptr;
  Stop trouble{};

  // ---- records ---------------------------------------------------------------------------------

  Flow* new_flow() {
    if (idle_flows.empty()) {
      flows.emplace_back();
      flows.back().handle = static_cast<int64_t>(flows.size()) - 1;
      idle_flows.push_back(&flows.back());
    }
    Flow* flow = idle_flows.back();
    idle_flows.pop_back();
    const int64_t handle = flow->handle;
    *flow = Flow();
    flow->handle = handle;
    flow->serial = ++serials;
    return flow;
  }
  void free_flow(Flow* flow) {
    flow->serial = 0;
    idle_flows.push_back(flow);
  }
  Link* new_link(int64_t id) {
    if (idle_links.empty()) {
      links.emplace_back();
      idle_links.push_back(&links.back());
    }
    Link* link = idle_links.back();
    idle_links.pop_back();
    *link = Link();
    link->serial = ++serials;
    link->id = id;
    link->capacity = capacity(id);
    link->since = now;
    return link;
  }
  double capacity(int64_t id) const {
    if (changed_capacity.empty()) return capacities[id];
    const auto found = changed_capacity.find(id);
    return found == changed_capacity.end() ? capacities[id] : found->second;
  }
  void note(Flow* flow) {
    if (flow->changed) return;
    flow->changed = true;
    changed_flows.push_back({flow, flow->serial});
  }
  void note(Link* link) {
    if (link->changed) return;
    link->changed = true;
    changed_links.push_back({link, link->serial});
  }

  // ---- meter -----------------------------------------------------------------------------------

  // differences of what is left are rounded: a link that stands still carries nothing
  static double clean(double carried, double capacity) {
    return carried > 0 && capacity > 0 ? carried : 0.0;
  }
  void report(int64_t id, double from, double bytes, double capacity, double flows,
              const double* airtime) {
    double rate = capacity;
    if (airtime) rate = *airtime > 0 ? capacity * (bytes / *airtime) : 0.0;
    for (double number : {static_cast<double>(id), from, now, bytes, rate, flows,
                          airtime ? *airtime : -1.0})
      uses.push_back(number);
  }
  void begin_alone(Slot& slot, double left) { slot.from = now, slot.left = left; }
  void end_alone(int64_t id, const Slot& slot, double left, double capacity, const Flow* flow) {
    if (!(now > slot.from)) return;
    const double carried = clean(slot.left - left, capacity), *cost = flow->air_cost(id);
    const double airtime = cost ? carried * *cost : 0.0;
    report(id, slot.from, carried, capacity, 1.0, cost ? &airtime : nullptr);
  }
  void open(Link* link) {
    if (link->metered) return;
    link->metered = true;
    link->from = link->load_from = now;
    link->carried = 0.0;
  }
  void load_changes(Link* link) {
    open(link);
    const double duration = now - link->load_from;
    link->carried += link->load.value() * duration;
    if (link->sending.count) link->bytes += link->sending.value() * duration;
    link->load_from = now;
  }
  void count_changes(Link* link, Load* load) {
    open(link);
    const double total = load->owner->turned + load->owner->progress_at(now);
    link->carried += load->tally.value() * (total - load->seen);
    if (load->sending.count) link->bytes += load->sending.value() * (total - load->seen);
    load->seen = total;
  }
  void close(Link* link) {
    load_changes(link);
    for (Load& load : link->loads) count_changes(link, &load);
    if (now > link->from) {
      const double carried = clean(link->carried, link->capacity);
      const double bytes = link->airtime ? clean(link->bytes, link->capacity) : carried;
      report(link->id, link->from, bytes, link->capacity, static_cast<double>(link->crossed_by),
             link->airtime ? &carried : nullptr);
      link->from = now;
      link->carried = link->bytes = 0.0;
    }
  }

  // ---- changes ---------------------------------------------------------------------------------

  void join(Flow* flow) {
    read_radios(flow);
    std::vector<Crossing> shared;
    std::vector<Flow*> met;
    for (int64_t id : flow->links) {
      Slot& slot = slots[id];
      Link* link = slot.shared;
      if (!link) {
        Flow* first = slot.alone;
        if (!first) {
          slot.alone = flow;
          if (metered) begin_alone(slot, flow->remaining);
          continue;
        }
        link = share(id, slot);
        if (flow->links.size() > LONG_PATH) {
          if (std::find(met.begin(), met.end(), first) == met.end()) met.push_back(first);
        } else {
          refresh(first);
        }
      } else if (metered) {
        close(link);
      }
      link->flows.push_back(flow);
      ++link->crossed_by;
      shared.push_back({link, link->flows.size() - 1});
    }
    for (Flow* first : met) refresh(first);
    flow->shared = std::move(shared);
    flow->since = now;
    flow->joined = true;
    find_limit(flow);
    enter(flow);
  }

  void leave(Flow* flow) {
    if (metered)
      for (const Crossing& at : flow->shared) close(at.link);
    release(flow);
    for (int64_t id : flow->links) {
      const auto found = slots.find(id);
      if (found != slots.end() && found->second.alone == flow) {
        if (metered) end_alone(id, found->second, flow->remaining, capacity(id), flow);
        slots.erase(found);
      }
    }
    for (const Crossing& at : flow->shared) {
      Link* link = at.link;
      link->flows[at.place] = nullptr;
      if (--link->crossed_by) {
        if (link->flows.size() > 2 * link->crossed_by + 64) close_ranks(link);
        mark(link);
      } else {
        slots.erase(link->id);
        --shared_links;
        link->serial = 0;
        dead_links.push_back(link);
      }
    }
    flow->joined = false;
    flow->owner = nullptr;
    flow->level_cap = -1.0;
    flow->shared.clear();
  }

  void close_ranks(Link* link) {
    size_t place = 0;
    for (Flow* flow : link->flows) {
      if (!flow) continue;
      for (Crossing& at : flow->shared)
        if (at.link == link) at.place = place;
      link->flows[place++] = flow;
    }
    link->flows.resize(place);
  }

  void set_capacity(int64_t id, double rate) {
    const auto found = slots.find(id);
    Link* link = found == slots.end() ? nullptr : found->second.shared;
    Flow* flow = found == slots.end() ? nullptr : found->second.alone;
    if (metered && link) {
      close(link);
    } else if (metered && flow) {
      begin_piece(id, found->second, flow);
    }
    changed_capacity[id] = rate;
    if (link) {
      link->capacity = rate;
      mark(link);
      std::vector<Flow*> tuned;
      for (Flow* user : link->flows)
        if (user && !user->radios.empty()) tuned.push_back(user);
      for (Flow* user : tuned) retune(user, id);
    } else if (flow) {
      refresh(flow);
      retune(flow, id);
    }
  }

  void set_weight(Flow* flow, double weight) {
    if (flow->joined) {
      release(flow);
      flow->weight = weight;
      find_limit(flow);
      enter(flow);
    } else {
      flow->weight = weight;
    }
  }

  void settle() {
    int64_t left = patience + patience_per_link * static_cast<int64_t>(shared_links);
    while (!dirty.empty()) {
      const Dirty first = dirty.front();
      pop(dirty);
      Link* link = first.link;
      if (link->serial != first.serial || !link->dirty) continue;
      link->dirty = false;
      if (--left < 0) return solve_all();
      solve(link);
    }
  }

  double left(const Flow* flow) const {
    if (!flow->owner) return most(flow->remaining - flow->limit * (now - flow->since), 0.0);
    return most((flow->end - flow->owner->progress_at(now)) * flow->weight, 0.0);
  }

  // ---- one flow --------------------------------------------------------------------------------

  Link* share(int64_t id, Slot& slot) {
    Flow* first = slot.alone;
    slot.alone = nullptr;
    if (metered) end_alone(id, slot, left(first), capacity(id), first);
    Link* link = slot.shared = new_link(id);
    ++shared_links;
    link->flows.push_back(first);
    link->crossed_by = 1;
    first->shared.push_back({link, 0});
    add(first, link);
    return link;
  }

  void find_limit(Flow* flow) {
    double limit = flow->cap;
    int64_t cap_link = OWN_CAP;
    if (flow->shared.size() < flow->links.size()) {
      for (int64_t id : flow->links) {
        const auto found = slots.find(id);
        if (found != slots.end() && found->second.shared) continue;
        double rate = capacity(id);
        if (!flow->costs.empty()) rate /= flow->cost_on(id);
        if (rate < limit) limit = rate, cap_link = id;
      }
    }
    flow->limit = limit, flow->cap_link = cap_link;
    flow->level_cap = limit / flow->weight;
  }

  void refresh(Flow* flow) {
    Link* owner = flow->owner;
    if (!owner) {
      release(flow);
      find_limit(flow);
      enter(flow);
      return;
    }
    const double before = flow->level_cap;
    find_limit(flow);
    if (flow->level_cap != before) {
      push(owner->by_cap, {flow->level_cap, flow->id, flow, flow->serial});
      mark(owner);
    }
  }

  void enter(Flow* flow) {
    const std::vector<Crossing>& shared = flow->shared;
    double narrowest = INF;
    if (!shared.empty()) {
      narrowest = shared[0].link->capacity;
      if (!flow->costs.empty()) narrowest /= flow->cost_on(shared[0].link->id);
      for (const Crossing& at : shared) {
        const double rate = at.link->capacity;
        narrowest = least(narrowest,
                          flow->costs.empty() ? rate : rate / flow->cost_on(at.link->id));
      }
    }
    if (shared.empty() || flow->limit < narrowest) {
      cap(flow);
    } else {
      Link* owner = shared[0].link;
      for (const Crossing& at : shared) {
        const Link* other = at.link;
        if (other->level != owner->level ? other->level < owner->level
            : other->capacity != owner->capacity ? other->capacity < owner->capacity
                                                 : other->id < owner->id)
          owner = at.link;
      }
      if (owner->level == INF) {
        owner->settle(now);
        // anything finite: it is dirty
        owner->level = owner->capacity / (flow->weight * flow->cost_on(owner->id));
        begin_watch(owner);
      }
      bind(flow, owner);
    }
    for (const Crossing& at : flow->shared) mark(at.link);
  }

  void cap(Flow* flow) {
    flow->owner = nullptr;
    note(flow);
    for (const Crossing& at : flow->shared) add(flow, at.link);
  }

  void bind(Flow* flow, Link* owner) {
    flow->owner = owner;
    flow->end = owner->progress_at(now) + flow->remaining / flow->weight;
    push(owner->ends, {flow->end, flow->id, flow, flow->serial});
    if (flow->level_cap < INF)
      push(owner->by_cap, {flow->level_cap, flow->id, flow, flow->serial});
    ++owner->pushes;
    note(owner);
    for (const Crossing& at : flow->shared) add(flow, at.link);
  }

  void release(Flow* flow) {
    Link* owner = flow->owner;
    const double passed = now - flow->since;
    flow->remaining = left(flow);
    for (const Crossing& at : flow->shared) remove(flow, at.link);
    if (owner) note(owner);
    if (passed > 0) {
      flow->dwell(owner ? owner->id : flow->cap_link, passed);
      flow->spent += passed;
      flow->since = now;
    }
    ++flow->stamp;
  }

  void add(Flow* flow, Link* link) {
    Link* owner = flow->owner;
    if (!owner) {
      if (metered) load_changes(link);
      double rate = flow->limit;
      if (const double* cost = flow->air_cost(link->id)) {
        if (metered) link->airtime = true, link->sending.add(rate);
        rate *= *cost;
      }
      link->load.add(rate);
      push(link->by_limit, {-flow->level_cap, flow->id, flow, flow->serial});
      ++link->pushes;
      return;
    }
    Load* load = link->find(owner);
    if (!load) {
      if (metered) open(link);
      link->loads.push_back({owner, Tally(), owner->turned + owner->progress_at(now)});
      load = &link->loads.back();
      if (owner != link && link->level < INF) owner->watch(link);
    } else if (metered) {
      count_changes(link, load);
    }
    double weight = flow->weight;
    if (const double* cost = flow->air_cost(link->id)) {
      if (metered) link->airtime = true, load->sending.add(weight);
      weight *= *cost;
    }
    load->tally.add(weight);
  }

  void remove(Flow* flow, Link* link) {
    Link* owner = flow->owner;
    if (!owner) {
      if (metered) load_changes(link);
      double rate = flow->limit;
      if (const double* cost = flow->air_cost(link->id)) {
        if (metered) link->sending.remove(rate);
        rate *= *cost;
      }
      link->load.remove(rate);
      return;
    }
    Load* load = link->find(owner);
    if (metered) count_changes(link, load);
    double weight = flow->weight;
    if (const double* cost = flow->air_cost(link->id)) {
      if (metered) load->sending.remove(weight);
      weight *= *cost;
    }
    load->tally.remove(weight);
    if (!load->tally.count) {
      link->loads.erase(link->loads.begin() + (load - link->loads.data()));
      owner->unwatch(link);
    }
  }

  void read_radios(Flow* flow) {
    for (const Radio& radio : flow->radios) {
      const double rate = capacity(radio.link);
      for (Cost& cost : flow->costs)
        if (cost.link == radio.cell && rate > 0) cost.value = 1 / rate;
    }
  }
  void retune(Flow* flow, int64_t id) {
    for (const Radio& radio : flow->radios) {
      if (radio.link != id) continue;
      Slot& slot = slots[radio.cell];
      if (metered && slot.alone == flow)
        begin_piece(radio.cell, slot, flow);
      else if (metered)
        close(slot.shared);
      release(flow);
      read_radios(flow);
      find_limit(flow);
      enter(flow);
      return;
    }
  }
  void begin_piece(int64_t id, Slot& slot, const Flow* flow) {
    const double rest = left(flow);
    end_alone(id, slot, rest, capacity(id), flow);
    begin_alone(slot, rest);
  }

  // ---- one link --------------------------------------------------------------------------------

  void mark(Link* link) {
    if (link->dirty) return;
    link->dirty = true;
    push(dirty, {link->level, link->id, link, link->serial});
  }

  void solve(Link* link) {
    link->settle(now);
    for (;;) {
      const Load* own = link->find(link);
      const double slack = link->slack();
      const double level = own ? slack / own->tally.value()
                               : (slack >= -TIE * link->capacity ? INF : -1.0);
      if (!pull(link, level) && !push_out(link, level)) return set_level(link, slack);
    }
  }

  bool pull(Link* link, double level) {
    if (level == INF) return false;
    const double bound = level + TIE * std::fabs(level);
    Flow* flow = link->fastest_capped();
    const double speed = flow ? flow->level_cap : -1.0;
    Link* rival = nullptr;
    for (const Load& load : link->loads)
      if (load.owner != link && (!rival || load.owner->level > rival->level)) rival = load.owner;
    if (rival && rival->level > bound && rival->level >= speed) {
      move_all(rival, link);
      return true;
    }
    if (!flow || speed <= bound) return false;
    release(flow);
    bind(flow, link);
    mark_others(flow, link);
    return true;
  }

  bool push_out(Link* link, double level) {
    Flow* flow = level > 0 ? link->lowest_cap() : nullptr;
    if (!flow || flow->level_cap >= level * (1 - TIE)) return false;
    release(flow);
    cap(flow);
    mark_others(flow, link);
    return true;
  }

  void move_all(Link* source, Link* target) {
    const bool less = source->crossed_by < target->crossed_by;
    Link *few = less ? source : target, *other = less ? target : source;
    std::vector<Flow*> moved;
    for (Flow* flow : few->flows) {
      if (!flow || flow->owner != source) continue;
      for (const Crossing& at : flow->shared)
        if (at.link == other) {
          moved.push_back(flow);
          break;
        }
    }
    for (Flow* flow : moved) {
      release(flow);
      bind(flow, target);
      mark_others(flow, nullptr);
    }
  }

  void mark_others(Flow* flow, const Link* solving) {
    for (const Crossing& at : flow->shared)
      if (at.link != solving) mark(at.link);
  }

  void set_level(Link* link, double slack) {
    if (link->pushes > 2 * static_cast<int64_t>(link->crossed_by) + 64) link->rebase();
    const double before = link->level;
    const Load* own = link->find(link);
    if (slack < -1e-9 * link->capacity) throw Stop{OVERFULL, link->id, -slack, link->capacity};
    const double level = own ? most(slack, 0.0) / own->tally.value() : INF;
    link->level = level;
    if (level == INF) {
      if (before < INF)
        for (const Load& load : link->loads) load.owner->unwatch(link);
      set_guards(link, slack);
    } else if (before == INF) {
      begin_watch(link);
    }
    if (level == before) return;
    note(link);
    for (Link* watcher : link->watchers) mark(watcher);
    std::vector<Guard>& guards = link->guards;
    while (!guards.empty() && guards.front().level * (1 + TIE) < level) {
      const Guard first = guards.front();
      pop(guards);
      if (first.watching->serial == first.serial && first.watching->guard == first.number) {
        first.watching->guarded.erase(link->serial);
        mark(first.watching);
      }
    }
  }

  void begin_watch(Link* link) {
    for (const Load& load : link->loads)
      if (load.owner != link) load.owner->watch(link);
  }

  void set_guards(Link* link, double slack) {
    const std::vector<Load>& loads = link->loads;
    if (loads.empty()) return;
    std::vector<double> numbers;
    bool all_held = true;
    for (const Load& load : loads) {
      const auto held = link->guarded.find(load.owner->serial);
      if (held == link->guarded.end() || !(load.owner->level <= held->second)) {
        all_held = false;
        break;
      }
      numbers.push_back((held->second - load.owner->level) * load.tally.value());
    }
    if (all_held && fsum(numbers) <= slack) return;
    ++link->guard;
    numbers.clear();
    for (const Load& load : loads) numbers.push_back(load.tally.value());
    const double room = slack / (2 * fsum(numbers));
    link->guarded.clear();
    for (const Load& load : loads) {
      const double level = load.owner->level + room;
      link->guarded[load.owner->serial] = level;
      push(load.owner->guards, {level, link->id, link->guard, link, link->serial});
      ++load.owner->pushes;
    }
  }

  // ---- the way out -----------------------------------------------------------------------------

  std::vector<Link*> shared_in_order() {
    std::vector<Link*> found;
    for (Link& link : links)
      if (link.serial) found.push_back(&link);
    std::sort(found.begin(), found.end(),
              [](const Link* a, const Link* b) { return a->serial < b->serial; });
    return found;
  }

  void solve_all() {
    const std::vector<Link*> all = shared_in_order();
    std::unordered_map<const Link*, int64_t> index;
    std::vector<double> rates_of_links;
    for (Link* link : all) {
      index[link] = static_cast<int64_t>(rates_of_links.size());
      rates_of_links.push_back(link->capacity);
    }
    std::vector<Flow*> concerned;
    std::unordered_set<const Flow*> seen;
    for (Link* link : all)
      for (Flow* flow : link->flows)
        if (flow && seen.insert(flow).second) concerned.push_back(flow);
    const size_t n = concerned.size();
    std::vector<int64_t> starts{0}, paths, bottlenecks(n);
    std::vector<double> costs, weights, limits, rates(n);
    for (Flow* flow : concerned) {
      for (const Crossing& at : flow->shared) {
        paths.push_back(index[at.link]);
        costs.push_back(flow->cost_on(at.link->id));
      }
      starts.push_back(static_cast<int64_t>(paths.size()));
      weights.push_back(flow->weight);
      limits.push_back(flow->limit);
    }
    if (solve_all_outside(static_cast<int64_t>(all.size()), rates_of_links.data(),
                          static_cast<int64_t>(n), starts.data(), paths.data(), costs.data(),
                          weights.data(), limits.data(), rates.data(), bottlenecks.data()))
      throw Stop{RAISED, 0, 0, 0};
    std::vector<double> levels(all.size(), INF);
    for (Link* link : all) link->settle(now);
    for (size_t i = 0; i < n; ++i) {
      Flow* flow = concerned[i];
      release(flow);
      if (bottlenecks[i] == OWN_CAP) {
        cap(flow);
      } else {
        bind(flow, all[bottlenecks[i]]);
        levels[bottlenecks[i]] = rates[i] / flow->weight;
      }
    }
    for (size_t i = 0; i < all.size(); ++i) {
      Link* link = all[i];
      link->level = levels[i];
      for (const Load& load : link->loads) {
        if (load.owner == link) continue;
        load.owner->unwatch(link);
        if (levels[i] < INF) load.owner->watch(link);
      }
    }
    std::vector<size_t> order(all.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return levels[a] < levels[b]; });
    for (size_t i : order) {  // lowest first: each depends only on lower ones
      set_level(all[i], all[i]->slack());
      note(all[i]);
    }
    for (Link* link : all) link->dirty = false;
    dirty.clear();
  }

  // ---- in time ---------------------------------------------------------------------------------

  void push_event(double at, int order, Flow* flow, Link* link, int64_t varying) {
    Event event{at, order, ++sequence, flow, link, varying, 0, 0};
    if (flow) event.serial = flow->serial, event.stamp = flow->stamp;
    if (link) event.serial = link->serial, event.stamp = link->stamp;
    push(heap, event);
  }
  void join_at(double at, Flow* flow) {
    flow->since = at;
    push_event(at, FLOW_JOINS, flow, nullptr, 0);
  }
  double next_at() {
    while (!heap.empty() && heap.front().is_void()) pop(heap);
    return heap.empty() ? INF : heap.front().at;
  }
  void advance(double until) {
    for (double at; (at = next_at()) <= until && !heap.empty();) play(at);
    if (until < INF) now = most(now, until);
  }
  void play(double at) {
    if (at < now - 1e-9 * (1 + std::fabs(at))) throw Stop{LATE, 0, at, now};
    now = at;
    while (!heap.empty() && heap.front().at <= at) {
      const Event event = heap.front();
      pop(heap);
      if (event.is_void()) continue;
      if (event.order == FLOW_JOINS)
        begin(event.flow);
      else if (event.order == FLOW_ENDS)
        drained(event.flow, event.flow->remaining / event.flow->limit);
      else if (event.order == LINK_ENDS)
        drain(event.link);
      else
        ask(change, event.varying);
    }
    finish();
  }
  void finish() {
    settle();
    schedule();
  }
  void ask(Asked of, int64_t number) {
    if (of(number)) throw Stop{RAISED, 0, 0, 0};
  }
  void begin(Flow* flow) {
    if (before_join) ask(before_join, flow->handle);
    if (flow->remaining <= 0 || (flow->links.empty() && flow->cap == INF)) {
      flow->since = now;
      drained(flow, 0.0);
      return;
    }
    join(flow);
    if (after_join) ask(after_join, flow->handle);
  }
  void drain(Link* link) {
    Flow* first = link->next_end();
    if (!first) return;
    link->progress = most(link->progress_at(now), first->end);
    link->since = now;
    while (first && first->end <= link->progress) {
      drained(first, now - first->since);
      first = link->next_end();
    }
  }
  void drained(Flow* flow, double took) {
    if (took > 0) {
      flow->dwell(flow->owner ? flow->owner->id : flow->cap_link, took);
      flow->spent += took;
    }
    flow->since = now;
    flow->remaining = 0.0;
    if (flow->joined) {
      leave(flow);
      if (flow->remaining > 1e-6 * flow->size) throw Stop{UNDRAINED, flow->id, flow->remaining, 0};
      flow->remaining = 0.0;
    }
    if (flow->unsent > 0 && flow->programmed) {
      double answer[2];
      if (burst(flow->handle, flow->spent, flow->unsent, answer)) throw Stop{RAISED, 0, 0, 0};
      flow->remaining = answer[1];
      flow->unsent -= flow->remaining;
      flow->spent += answer[0];
      join_at(now + answer[0], flow);
    } else {
      ended.push_back(flow);
    }
  }
  void schedule() {
    for (const auto& [flow, serial] : changed_flows) {
      if (flow->serial != serial) continue;
      flow->changed = false;
      if (flow->joined && !flow->owner && flow->limit > 0)
        push_event(flow->since + flow->remaining / flow->limit, FLOW_ENDS, flow, nullptr, 0);
    }
    changed_flows.clear();
    for (const auto& [link, serial] : changed_links) {
      if (link->serial != serial) continue;
      link->changed = false;
      ++link->stamp;
      const Flow* first = link->next_end();
      if (first && link->level > 0) {
        const double left = most(first->end - link->progress, 0.0) / link->level;
        push_event(most(link->since + left, now), LINK_ENDS, nullptr, link, 0);
      }
    }
    changed_links.clear();
    idle_links.insert(idle_links.end(), dead_links.begin(), dead_links.end());
    dead_links.clear();
  }

  // ---- what is handed out ----------------------------------------------------------------------

  void tell(const Flow* flow) {
    out.push_back(static_cast<double>(flow->handle));
    for (double number : {flow->remaining, flow->unsent, flow->spent, flow->since})
      out.push_back(number);
    out.push_back(static_cast<double>(flow->dwelt.size()));
    for (const Dwelt& part : flow->dwelt) {
      out.push_back(static_cast<double>(part.link));
      out.push_back(part.seconds);
    }
  }
  int64_t hand_out() {
    out.clear();
    out.push_back(static_cast<double>(ended.size()));
    for (Flow* flow : ended) {
      tell(flow);
      free_flow(flow);
    }
    ended.clear();
    out.insert(out.end(), uses.begin(), uses.end());
    uses.clear();
    const int64_t count = static_cast<int64_t>(out.size());
    if (count <= room) std::copy(out.begin(), out.end(), said);
    return count;
  }
  template <class Work>
  int64_t guarded_call(Work work) {
    int64_t answer = NO_MEMORY;
    try {
      work();
      answer = hand_out();
    } catch (const Stop& stop) {
      trouble = stop;
      answer = stop.what;
    } catch (const std::bad_alloc&) {
    }
    next = next_at();
    return answer;
  }
  Flow* at(int64_t handle) { return &flows[static_cast<size_t>(handle)]; }

  // Everything as two streams of numbers, in the order in which `undump` reads them. Heaps of
  // flows and guards are left out: they follow from the rest.
  void dump() {
    whole.clear(), parts.clear();
    const std::vector<Link*> all = shared_in_order();
    std::unordered_map<const Link*, int64_t> index{{nullptr, -1}};
    std::unordered_map<uint64_t, int64_t> by_serial;
    for (Link* link : all) {
      by_serial[link->serial] = static_cast<int64_t>(by_serial.size());
      index[link] = by_serial[link->serial];
    }
    std::vector<const Flow*> known;
    for (const Flow& flow : flows)
      if (flow.serial) known.push_back(&flow);
    parts.push_back(now);
    whole.insert(whole.end(), {sequence, static_cast<int64_t>(known.size()),
                               static_cast<int64_t>(all.size())});
    for (const Flow* flow : known) {
      whole.insert(whole.end(), {flow->handle, flow->stamp, flow->joined, flow->cap_link,
                                 index[flow->owner], static_cast<int64_t>(flow->shared.size())});
      for (const Crossing& at : flow->shared) whole.push_back(index[at.link]);
      whole.push_back(static_cast<int64_t>(flow->dwelt.size()));
      for (const Dwelt& part : flow->dwelt) {
        whole.push_back(part.link);
        parts.push_back(part.seconds);
      }
      parts.insert(parts.end(), {flow->remaining, flow->unsent, flow->spent, flow->since,
                                 flow->end, flow->limit, flow->level_cap});
      whole.push_back(static_cast<int64_t>(flow->costs.size()));
      for (const Cost& cost : flow->costs) {
        whole.push_back(cost.link);
        parts.push_back(cost.value);
      }
    }
    for (Link* link : all) {
      whole.insert(whole.end(), {link->id, link->guard, link->stamp, link->pushes,
                                 static_cast<int64_t>(link->crossed_by)});
      for (const Flow* flow : link->flows)
        if (flow) whole.push_back(flow->handle);
      whole.push_back(static_cast<int64_t>(link->loads.size()));
      for (const Load& load : link->loads) {
        whole.insert(whole.end(), {index[load.owner], load.tally.count, load.sending.count});
        parts.insert(parts.end(), {load.tally.total, load.tally.error, load.seen,
                                   load.sending.total, load.sending.error});
      }
      whole.push_back(static_cast<int64_t>(link->watchers.size()));
      for (const Link* watcher : link->watchers) whole.push_back(index[watcher]);
      std::vector<std::pair<int64_t, double>> held;
      for (const auto& [serial, level] : link->guarded)
        if (by_serial.count(serial)) held.push_back({by_serial[serial], level});
      std::sort(held.begin(), held.end());
      whole.push_back(static_cast<int64_t>(held.size()));
      for (const auto& [owner, level] : held) {
        whole.push_back(owner);
        parts.push_back(level);
      }
      whole.insert(whole.end(), {link->metered, link->airtime, link->sending.count});
      parts.insert(parts.end(),
                   {link->capacity, link->level, link->progress, link->since, link->turned,
                    link->load.total, link->load.error, link->from, link->load_from,
                    link->carried, link->bytes, link->sending.total, link->sending.error});
      whole.push_back(link->load.count);
    }
    std::vector<std::pair<int64_t, Slot>> alone;
    for (const auto& [id, slot] : slots)
      if (slot.alone) alone.push_back({id, slot});
    std::sort(alone.begin(), alone.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    whole.push_back(static_cast<int64_t>(alone.size()));
    for (const auto& [id, slot] : alone) {
      whole.insert(whole.end(), {id, slot.alone->handle});
      parts.insert(parts.end(), {slot.from, slot.left});
    }
    std::vector<std::pair<int64_t, double>> changed(changed_capacity.begin(),
                                                    changed_capacity.end());
    std::sort(changed.begin(), changed.end());
    whole.push_back(static_cast<int64_t>(changed.size()));
    for (const auto& [id, rate] : changed) {
      whole.push_back(id);
      parts.push_back(rate);
    }
    std::vector<Event> events;
    for (const Event& event : heap)
      if (!event.is_void()) events.push_back(event);
    std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) { return b < a; });
    whole.push_back(static_cast<int64_t>(events.size()));
    for (const Event& event : events) {
      const int64_t what = event.flow   ? event.flow->handle
                           : event.link ? index[event.link]
                                        : event.varying;
      whole.insert(whole.end(), {event.order, event.sequence, what});
      parts.push_back(event.at);
    }
  }

  // Inverse of `dump`, on a new engine whose flows have been entered in the order of the dump and
  // so have the handles 0, 1, …
  void undump(const int64_t* n, const double* x) {
    now = *x++;
    sequence = *n++;
    const int64_t known = *n++, shared = *n++;
    std::vector<Link*> all;
    for (int64_t i = 0; i < shared; ++i) all.push_back(new_link(0));
    shared_links = all.size();
    const auto link_at = [&](int64_t i) { return i < 0 ? nullptr : all[static_cast<size_t>(i)]; };
    for (int64_t i = 0; i < known; ++i) {
      Flow* flow = at(*n++);
      flow->stamp = *n++, flow->joined = *n++ != 0, flow->cap_link = *n++;
      flow->owner = link_at(*n++);
      for (int64_t k = *n++; k > 0; --k) flow->shared.push_back({link_at(*n++), 0});
      for (int64_t k = *n++; k > 0; --k) flow->dwelt.push_back({*n++, *x++});
      flow->remaining = *x++, flow->unsent = *x++, flow->spent = *x++, flow->since = *x++;
      flow->end = *x++, flow->limit = *x++, flow->level_cap = *x++;
      flow->costs.clear();
      for (int64_t k = *n++; k > 0; --k) flow->costs.push_back({*n++, *x++});
    }
    for (Link* link : all) {
      link->id = *n++, link->guard = *n++, link->stamp = *n++, link->pushes = *n++;
      for (int64_t k = *n++; k > 0; --k) link->flows.push_back(at(*n++));
      link->crossed_by = link->flows.size();
      close_ranks(link);
      for (int64_t k = *n++; k > 0; --k) {
        Load load{link_at(*n++), Tally(), 0.0};
        load.tally.count = *n++, load.sending.count = *n++;
        load.tally.total = *x++, load.tally.error = *x++, load.seen = *x++;
        load.sending.total = *x++, load.sending.error = *x++;
        link->loads.push_back(load);
      }
      for (int64_t k = *n++; k > 0; --k) link->watchers.push_back(link_at(*n++));
      for (int64_t k = *n++; k > 0; --k) {
        Link* owner = link_at(*n++);
        link->guarded[owner->serial] = *x;
        owner->guards.push_back({*x++, link->id, link->guard, link, link->serial});
      }
      link->metered = *n++ != 0, link->airtime = *n++ != 0, link->sending.count = *n++;
      link->capacity = *x++, link->level = *x++, link->progress = *x++, link->since = *x++;
      link->turned = *x++, link->load.total = *x++, link->load.error = *x++;
      link->from = *x++, link->load_from = *x++, link->carried = *x++;
      link->bytes = *x++, link->sending.total = *x++, link->sending.error = *x++;
      link->load.count = *n++;
      slots[link->id].shared = link;
    }
    for (Link* link : all) link->collect();
    for (int64_t k = *n++; k > 0; --k) {
      Slot& slot = slots[*n++];
      slot.alone = at(*n++);
      slot.from = *x++, slot.left = *x++;
    }
    for (int64_t k = *n++; k > 0; --k) {
      const int64_t id = *n++;
      changed_capacity[id] = *x++;
    }
    heap.clear();
    for (int64_t k = *n++; k > 0; --k) {
      Event event{*x++, static_cast<int32_t>(n[0]), n[1], nullptr, nullptr, 0, 0, 0};
      if (event.order == LINK_ENDS) {
        event.link = link_at(n[2]);
        event.serial = event.link->serial, event.stamp = event.link->stamp;
      } else if (event.order == CAPACITY_CHANGES) {
        event.varying = n[2];
      } else {
        event.flow = at(n[2]);
        event.serial = event.flow->serial, event.stamp = event.flow->stamp;
      }
      n += 3;
      push(heap, event);
    }
  }
};

}  // namespace

#if defined(_WIN32)
#define OPEN extern "C" __declspec(dllexport)
#else
#define OPEN extern "C" __attribute__((visibility("default")))
#endif

// Of simfed/native/__init__.py.
OPEN int simfed_interface() { return 4; }

// `said` has room for so many of the numbers that calls hand out.
OPEN Engine* net_new(const double* capacities, int metered, Solve solve, double* said,
                     int64_t room) {
  Engine* engine = new (std::nothrow) Engine();
  if (engine) engine->capacities = capacities, engine->metered = metered != 0;
  if (engine) engine->solve_all_outside = solve, engine->said = said, engine->room = room;
  return engine;
}
OPEN void net_free(Engine* engine) { delete engine; }
OPEN void net_ask(Engine* engine, Burst burst, Asked before_join, Asked after_join, Asked change) {
  engine->burst = burst, engine->before_join = before_join;
  engine->after_join = after_join, engine->change = change;
}
// After how many links in one instant everything is solved from scratch.
OPEN void net_patience(Engine* engine, int64_t whole, int64_t per_link) {
  engine->patience = whole, engine->patience_per_link = per_link;
}
// Where the engine's clock, and the instant of what comes next, can be read at any time.
OPEN const double* net_now(Engine* engine) { return &engine->now; }
OPEN const double* net_next(Engine* engine) { return &engine->next; }
OPEN void net_restart(Engine* engine) {
  engine->heap.clear();
  engine->now = 0.0, engine->next = INF;
}
OPEN double net_capacity(Engine* engine, int64_t id) { return engine->capacity(id); }

// Enter a flow that joins at an instant (at none: NaN); its handle, or a Trouble. One array, which
// costs its caller less than as many arguments: eight facts of the flow, the instant, its path.
OPEN int64_t net_enter(Engine* engine, int64_t count, const double* facts) {
  try {
    Flow* flow = engine->new_flow();
    flow->id = static_cast<int64_t>(facts[0]), flow->size = facts[1], flow->weight = facts[2];
    flow->cap = facts[3], flow->remaining = facts[4], flow->unsent = facts[5];
    flow->spent = facts[6], flow->programmed = facts[7] != 0;
    const double at = facts[8];
    for (int64_t i = 9; i < count; ++i) flow->links.push_back(static_cast<int64_t>(facts[i]));
    if (at == at) {
      engine->join_at(at, flow);
      engine->next = engine->next_at();
    }
    return flow->handle;
  } catch (const std::bad_alloc&) {
    return NO_MEMORY;
  }
}
// What a byte of a flow costs on the airtime `air`, before it joins; a cost that follows the
// capacity of the link `radio` (below 0: none). 0, or a Trouble.
OPEN int64_t net_cost(Engine* engine, int64_t handle, int64_t air, double cost, int64_t radio) {
  try {
    Flow* flow = engine->at(handle);
    flow->costs.push_back({air, cost});
    if (radio >= 0) flow->radios.push_back({radio, air});
    return 0;
  } catch (const std::bad_alloc&) {
    return NO_MEMORY;
  }
}
// Play `count` flows of fluid transfers to their ends on a new engine without traces: flow i starts
// at `at[i]`, or so long after flow `after[i]` < i has ended, and crosses
// `paths[starts[i]:starts[i + 1]]`. `spent` gets what each takes. 0, or a Trouble.
OPEN int64_t net_play(Engine* engine, int64_t count, const double* at, const int64_t* after,
                      const int64_t* starts, const int64_t* paths, const double* sizes,
                      const double* latencies, const double* weights, double* spent) {
  const auto start = [&](int64_t i, double when) {
    Flow* flow = engine->new_flow();
    flow->id = i, flow->size = flow->remaining = sizes[i], flow->weight = weights[i];
    flow->spent = latencies[i];
    flow->links.assign(paths + starts[i], paths + starts[i + 1]);
    engine->join_at(when + latencies[i], flow);
  };
  const int64_t done = engine->guarded_call([&] {
    std::unordered_map<int64_t, std::vector<int64_t>> follow;
    for (int64_t i = 0; i < count; ++i) {
      if (after[i] < 0)
        start(i, at[i]);
      else
        follow[after[i]].push_back(i);
    }
    const auto collect = [&] {
      for (Flow* flow : engine->ended) {
        spent[flow->id] = flow->spent;
        const auto found = follow.find(flow->id);
        if (found != follow.end()) {
          for (int64_t i : found->second) start(i, engine->now + at[i]);
          follow.erase(found);
        }
        engine->free_flow(flow);
      }
      engine->ended.clear();
    };
    while (!follow.empty() && !engine->heap.empty()) {
      engine->advance(engine->next_at());
      collect();
    }
    engine->advance(INF);
    collect();
  });
  return done < 0 ? done : 0;
}

// Each writes into `net_out` and answers how many numbers that are, or with a Trouble.
OPEN int64_t net_advance(Engine* engine, double until) {
  return engine->guarded_call([=] { engine->advance(until); });
}
OPEN int64_t net_cancel(Engine* engine, int64_t handle) {
  return engine->guarded_call([=] {
    Flow* flow = engine->at(handle);
    if (flow->joined) engine->leave(flow);
    ++flow->stamp;
    engine->finish();
    engine->ended.push_back(flow);
  });
}
OPEN int64_t net_change_now(Engine* engine, int64_t id, double rate) {
  return engine->guarded_call([=] {
    engine->set_capacity(id, rate);
    engine->finish();
  });
}
OPEN int64_t net_look(Engine* engine, int64_t handle) {
  engine->out.clear();
  engine->tell(engine->at(handle));
  return static_cast<int64_t>(engine->out.size());
}
OPEN const double* net_out(Engine* engine) { return engine->out.data(); }
OPEN const Stop* net_trouble(Engine* engine) { return &engine->trouble; }
OPEN double net_left(Engine* engine, int64_t handle) {
  const Flow* flow = engine->at(handle);
  return flow->joined ? engine->left(flow) : flow->remaining;
}

// For traces, from within `net_ask`'s functions.
OPEN void net_set_capacity(Engine* engine, int64_t id, double rate) {
  engine->set_capacity(id, rate);
}
OPEN void net_set_weight(Engine* engine, int64_t handle, double weight) {
  engine->set_weight(engine->at(handle), weight);
}
OPEN void net_change_at(Engine* engine, int64_t id, double at) {
  engine->push_event(at, CAPACITY_CHANGES, nullptr, nullptr, id);
  engine->next = engine->next_at();
}
OPEN int net_in_use(Engine* engine, int64_t id) { return engine->slots.count(id) != 0; }
// How many flows use a link, and their handles as far as there is room.
OPEN int64_t net_users(Engine* engine, int64_t id, int64_t room, int64_t* handles) {
  const auto found = engine->slots.find(id);
  if (found == engine->slots.end()) return 0;
  int64_t n = 0;
  const auto one = [&](const Flow* flow) {
    if (n < room) handles[n] = flow->handle;
    ++n;
  };
  if (found->second.alone) one(found->second.alone);
  if (found->second.shared)
    for (const Flow* flow : found->second.shared->flows)
      if (flow) one(flow);
  return n;
}

OPEN int64_t net_dump(Engine* engine, int64_t* parts) {
  engine->dump();
  *parts = static_cast<int64_t>(engine->parts.size());
  return static_cast<int64_t>(engine->whole.size());
}
OPEN const int64_t* net_whole(Engine* engine) { return engine->whole.data(); }
OPEN const double* net_parts(Engine* engine) { return engine->parts.data(); }
OPEN void net_undump(Engine* engine, const int64_t* whole, const double* parts) {
  engine->undump(whole, parts);
  engine->next = engine->next_at();
}
