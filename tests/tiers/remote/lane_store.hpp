// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/tiers/in_process_store.hpp>
#include <stateport/tiers/remote_store.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace stateport::test {

/// A lane over objects of this process.
class ObjectsLane : public RemoteLane {
 public:
  explicit ObjectsLane(std::shared_ptr<InProcessObjects> objects) : objects_(std::move(objects)) {}

  void carry_out(RemoteCall call, std::span<const RemoteObject> objects, std::span<Completion> answers) override {
    const auto found = [](bool is_there) { return is_there ? TransferStatus::done : TransferStatus::gone; };
    for (std::size_t i = 0; i < objects.size(); ++i) {
      const RemoteObject& object = objects[i];
      if (call == RemoteCall::put) answers[i].status = objects_->put(object.key, object.pieces);
      if (call == RemoteCall::get) answers[i] = objects_->get(object.key, object.pieces);
      if (call == RemoteCall::exists) answers[i].status = found(objects_->contains(object.key));
      if (call == RemoteCall::remove) answers[i].status = found(objects_->erase(object.key));
    }
  }

 private:
  std::shared_ptr<InProcessObjects> objects_;
};

/// A store with a thread for each of its lanes.
class LaneStore final : public RemoteStore {
 public:
  using Lanes = std::vector<std::unique_ptr<RemoteLane>>;

  explicit LaneStore(Lanes lanes, const RemoteQueueLimits& limits = {}, std::size_t batch_bytes = 0)
      : RemoteStore(limits) {
    serve(std::move(lanes), batch_bytes);
  }
  explicit LaneStore(std::unique_ptr<RemoteLane> lane, std::size_t batch_bytes = 0) {
    Lanes one;
    one.push_back(std::move(lane));
    serve(std::move(one), batch_bytes);
  }

  [[nodiscard]] static Lanes lanes_over(const std::shared_ptr<InProcessObjects>& objects, std::size_t count) {
    Lanes lanes;
    while (lanes.size() < count) lanes.push_back(std::make_unique<ObjectsLane>(objects));
    return lanes;
  }
};

}  // namespace stateport::test
